package sqlbroker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
)

// errChanged is a transaction that found other rows than it had seen; a new one sees them.
var errChanged = errors.New("the rows have changed meanwhile")

// portion bounds the rows that one statement changes.
const portion = 1000

func (m *mysqlServer) join(ctx context.Context, queue int64, name string, visibility time.Duration) (consumer int64, err error) {
	result, err := m.db.ExecContext(ctx, `INSERT INTO oncemill_sql_consumers (queue, name, expires_at) VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)`,
		queue, name, visibility.Microseconds())
	if err == nil {
		consumer, err = result.LastInsertId()
	}
	if err == nil {
		err = m.reap(ctx, queue)
	}
	if err != nil {
		return 0, fmt.Errorf("joining as a consumer: %w", err)
	}
	return consumer, nil
}

func (m *mysqlServer) beat(ctx context.Context, queue, consumer int64, visibility time.Duration) (alive bool, err error) {
	n, err := changed(ctx, m.db, `UPDATE oncemill_sql_consumers SET expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id = ?`,
		visibility.Microseconds(), consumer)
	if err == nil && n == 0 {
		return false, nil
	}
	if err == nil {
		err = m.reap(ctx, queue)
	}
	if err != nil {
		return true, fmt.Errorf("extending a consumer's life: %w", err)
	}
	return true, nil
}

const dead = `SELECT id FROM oncemill_sql_consumers WHERE queue = ? AND expires_at < UTC_TIMESTAMP(6)`

// reap removes dead consumers and frees what they held.
func (m *mysqlServer) reap(ctx context.Context, queue int64) error {
	if ids, err := offsets(ctx, m.db, dead, queue); err != nil || len(ids) == 0 {
		return err
	}
	return m.inTx(ctx, func(c *sql.Conn) error {
		if _, err := offsets(ctx, c, `SELECT id FROM oncemill_sql_queues WHERE id = ? FOR UPDATE`, queue); err != nil {
			return err
		}
		return reapIn(ctx, c, queue)
	})
}

// reapIn works in steps, each with a view of its own, while the queue's row is locked: one reaper at a time. A claim of a dying consumer locks its
// row: removing that waits for the claim, which the next step then sees.
func reapIn(ctx context.Context, c *sql.Conn, queue int64) error {
	ids, err := offsets(ctx, c, dead, queue)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := bury(ctx, c, queue, id); err != nil {
			return fmt.Errorf("freeing what dead consumers held: %w", err)
		}
	}
	return nil
}

// bury removes a consumer that is dead, frees what it held, and reports whether it has gone.
func bury(ctx context.Context, c *sql.Conn, queue, consumer int64) (gone bool, err error) {
	n, err := changed(ctx, c, `DELETE FROM oncemill_sql_consumers WHERE id = ? AND expires_at < UTC_TIMESTAMP(6)`, consumer)
	if err != nil {
		return false, err
	}
	if n == 0 {
		left, err := offsets(ctx, c, `SELECT id FROM oncemill_sql_consumers WHERE id = ?`, consumer)
		return len(left) == 0, err
	}
	held, err := offsets(ctx, c, "SELECT `offset` FROM oncemill_sql_deliveries WHERE queue = ? AND owner = ? ORDER BY `offset`", queue, consumer)
	if err != nil {
		return false, err
	}
	for part := range slices.Chunk(held, portion) {
		if _, err := c.ExecContext(ctx, "UPDATE "+deliveries(part)+"SET d.owner = 0 WHERE d.owner = ?", queue, consumer); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (m *mysqlServer) activate(ctx context.Context, queue, consumer int64) (active bool, err error) {
	// Most askers find another one alive: they lock nothing.
	var taken bool
	err = m.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM oncemill_sql_queues q JOIN oncemill_sql_consumers c ON c.id = q.active
		WHERE q.id = ? AND c.id <> ? AND c.expires_at > UTC_TIMESTAMP(6))`, queue, consumer).Scan(&taken)
	if err == nil && !taken {
		err = m.inTx(ctx, func(c *sql.Conn) (err error) {
			active, err = activateIn(ctx, c, queue, consumer)
			return err
		})
	}
	if err != nil {
		return false, fmt.Errorf("becoming the active consumer: %w", err)
	}
	return active, nil
}

func activateIn(ctx context.Context, c *sql.Conn, queue, consumer int64) (bool, error) {
	var former sql.NullInt64
	err := c.QueryRowContext(ctx, `SELECT active FROM oncemill_sql_queues WHERE id = ? FOR UPDATE`, queue).Scan(&former)
	if errors.Is(err, sql.ErrNoRows) {
		return false, errNoQueue
	}
	if err != nil {
		return false, err
	}
	if former.Valid && former.Int64 != consumer {
		if gone, err := bury(ctx, c, queue, former.Int64); err != nil || !gone {
			return false, err
		}
	}
	if _, err := c.ExecContext(ctx, `UPDATE oncemill_sql_queues SET active = ? WHERE id = ?`, consumer, queue); err != nil {
		return false, err
	}
	return true, reapIn(ctx, c, queue)
}

func (m *mysqlServer) leave(ctx context.Context, queue, consumer int64) error {
	err := m.inTx(ctx, func(c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, `UPDATE oncemill_sql_queues SET active = NULL WHERE id = ? AND active = ?`, queue, consumer); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, `DELETE FROM oncemill_sql_consumers WHERE id = ?`, consumer)
		return err
	})
	if err != nil {
		return fmt.Errorf("leaving as a consumer: %w", err)
	}
	return nil
}

// ready are the messages that may be claimed.
const ready = " FROM oncemill_sql_deliveries FORCE INDEX (PRIMARY) WHERE queue = ? AND `offset` >= ? AND owner = 0 AND (due IS NULL OR due <= UTC_TIMESTAMP(6)) ORDER BY `offset` LIMIT ?"

func (m *mysqlServer) claim(ctx context.Context, c claim) ([]row, error) {
	if !c.crowded { // an idle consumer locks nothing
		if any, err := offsets(ctx, m.db, "SELECT `offset`"+ready, c.queue, c.from, 1); err != nil || len(any) == 0 {
			return nil, m.claimError(c.topic, err)
		}
	}
	var claimed []row
	err := m.inTx(ctx, func(conn *sql.Conn) (err error) {
		claimed, err = take(ctx, conn, c)
		return err
	})
	if err == nil && len(claimed) > 0 {
		err = m.read(ctx, c.topic, claimed)
	}
	if err != nil {
		return nil, m.claimError(c.topic, err)
	}
	return claimed, nil
}

func (m *mysqlServer) claimError(topic string, err error) error {
	switch {
	case err == nil:
		return nil
	case mysqlwire.Number(err) == noSuchTable:
		m.forget(topic)
		err = errNoTopic
	}
	return fmt.Errorf("claiming messages: %w", err)
}

// take makes messages the consumer's. One of several consumers passes over what others have locked. The one consumer of an ordered
// queue must not: it locks what it sees committed, and would wait for a rival; a locking read would wait for every open publisher too.
func take(ctx context.Context, conn *sql.Conn, c claim) ([]row, error) {
	me, err := offsets(ctx, conn, `SELECT id FROM oncemill_sql_consumers WHERE id = ? LOCK IN SHARE MODE`, c.consumer)
	if err != nil || len(me) == 0 {
		return nil, err
	}
	lock := " FOR UPDATE SKIP LOCKED"
	if c.wait {
		lock = ""
	}
	found, err := conn.QueryContext(ctx, "SELECT `offset`, count + 1"+ready+lock, c.queue, c.from, c.limit)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	var rows []row
	for found.Next() {
		r := row{missing: true}
		if err := found.Scan(&r.offset, &r.count); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	for part := range slices.Chunk(rows, portion) {
		n, err := changed(ctx, conn, "UPDATE oncemill_sql_deliveries FORCE INDEX (PRIMARY) SET owner = ?, count = count + 1 WHERE queue = ? AND owner = 0 AND "+spans(places(part)),
			c.consumer, c.queue)
		if err == nil && n != int64(len(part)) {
			err = errChanged
		}
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func places(rows []row) []int64 {
	all := make([]int64, len(rows))
	for i, r := range rows {
		all[i] = r.offset
	}
	return all
}

// read fills in the messages of claimed rows, which are in the order of their offsets.
func (m *mysqlServer) read(ctx context.Context, topic string, rows []row) error {
	for part := range slices.Chunk(rows, portion) {
		found, err := m.db.QueryContext(ctx, "SELECT `offset`, uuid, payload, metadata FROM "+quoted(topic)+" FORCE INDEX (PRIMARY) WHERE "+spans(places(part)))
		if err != nil {
			return err
		}
		for found.Next() {
			var r row
			if err := found.Scan(&r.offset, &r.uuid, &r.payload, &r.metadata); err != nil {
				return errors.Join(err, found.Close())
			}
			at, known := slices.BinarySearchFunc(part, r.offset, func(r row, offset int64) int { return int(min(max(r.offset-offset, -1), 1)) })
			if known {
				r.count = part[at].count
				part[at] = r
			}
		}
		if err := errors.Join(found.Err(), found.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (m *mysqlServer) tidy(ctx context.Context, queue, consumer int64, has []int64) error {
	err := m.inTx(ctx, func(c *sql.Conn) error {
		if _, err := offsets(ctx, c, `SELECT id FROM oncemill_sql_consumers WHERE id = ? FOR UPDATE`, consumer); err != nil {
			return err
		}
		held, err := offsets(ctx, c, "SELECT `offset` FROM oncemill_sql_deliveries WHERE queue = ? AND owner = ? ORDER BY `offset`", queue, consumer)
		if err != nil {
			return err
		}
		lost := slices.DeleteFunc(held, func(offset int64) bool { return slices.Contains(has, offset) })
		for part := range slices.Chunk(lost, portion) {
			if err := handedBack(ctx, c, queue, consumer, part); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("freeing what a lost claim took: %w", err)
	}
	return nil
}

// handedBack frees messages that were not delivered.
func handedBack(ctx context.Context, c *sql.Conn, queue, consumer int64, part []int64) error {
	_, err := c.ExecContext(ctx, "UPDATE "+deliveries(part)+"SET d.owner = 0, d.count = d.count - 1 WHERE d.owner = ?", queue, consumer)
	return err
}
