package sqlbroker

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
)

// publish is one statement, and so one transaction, whose return is its commit.
func (m *mysqlServer) publish(ctx context.Context, topic string, rows []outgoing) error {
	plain, err := m.isPlain(ctx, topic)
	if err != nil {
		return err
	}
	args := make([]any, 0, 3*len(rows))
	for _, r := range rows {
		var payload any = string(r.payload)
		if plain {
			payload = append([]byte{}, r.payload...) // never NULL
		}
		args = append(args, r.uuid, payload, r.metadata)
	}
	values := strings.TrimSuffix(strings.Repeat("(?,?,?),", len(rows)), ",")
	_, err = m.db.ExecContext(ctx, "INSERT INTO "+quoted(topic)+" (uuid, payload, metadata) VALUES "+values, args...)
	if mysqlwire.Number(err) == noSuchTable {
		m.forget(topic)
		return errNoTopic
	}
	return err
}

func (m *mysqlServer) settle(ctx context.Context, queue, consumer int64, s settlements) error {
	if len(s.acked)+len(s.nacked)+len(s.untouched) == 0 {
		return nil
	}
	slices.Sort(s.acked)
	var err error
	if len(s.acked) <= portion && len(s.nacked)+len(s.untouched) == 0 {
		// By far the most common: one statement, which commits by itself, is one round trip instead of three.
		err = contend(ctx, func() error { return deleteAcked(ctx, m.db, queue, consumer, s.acked) })
	} else {
		err = m.inTx(ctx, func(c *sql.Conn) error { return settleIn(ctx, c, queue, consumer, s) })
	}
	if err != nil {
		return fmt.Errorf("settling messages: %w", err)
	}
	return nil
}

func settleIn(ctx context.Context, c *sql.Conn, queue, consumer int64, s settlements) error {
	for part := range slices.Chunk(s.acked, portion) {
		if err := deleteAcked(ctx, c, queue, consumer, part); err != nil {
			return err
		}
	}
	slices.Sort(s.untouched)
	for part := range slices.Chunk(s.untouched, portion) {
		if err := handedBack(ctx, c, queue, consumer, part); err != nil {
			return err
		}
	}
	return postpone(ctx, c, queue, consumer, s.nacked)
}

func deleteAcked(ctx context.Context, db querierSQL, queue, consumer int64, part []int64) error {
	_, err := db.ExecContext(ctx, "DELETE d FROM "+deliveries(part)+"WHERE d.owner = ?", queue, consumer)
	return err
}

// postpone frees messages for later, those of one delay together.
func postpone(ctx context.Context, c *sql.Conn, queue, consumer int64, nacked []postponed) error {
	byDelay := map[time.Duration][]int64{}
	for _, n := range nacked {
		byDelay[n.delay] = append(byDelay[n.delay], n.offset)
	}
	for delay, all := range byDelay {
		slices.Sort(all)
		for part := range slices.Chunk(all, portion) {
			if _, err := c.ExecContext(ctx, "UPDATE "+deliveries(part)+"SET d.owner = 0, d.due = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE d.owner = ?",
				queue, delay.Microseconds(), consumer); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *mysqlServer) last(ctx context.Context, queue int64) (int64, bool, error) {
	var offset sql.NullInt64
	if err := m.db.QueryRowContext(ctx, "SELECT max(`offset`) FROM oncemill_sql_deliveries WHERE queue = ?", queue).Scan(&offset); err != nil {
		return 0, false, fmt.Errorf("reading where the queue ends: %w", err)
	}
	return offset.Int64, offset.Valid, nil
}

func (m *mysqlServer) settledUpTo(ctx context.Context, queue, offset int64) (bool, error) {
	left, err := offsets(ctx, m.db, "SELECT `offset` FROM oncemill_sql_deliveries WHERE queue = ? AND `offset` <= ? ORDER BY `offset` LIMIT 1", queue, offset)
	if err != nil {
		return false, fmt.Errorf("reading what is left of the backlog: %w", err)
	}
	return len(left) == 0, nil
}

// clean walks over the topic's messages from the oldest on. The column of the time has whole seconds.
func (m *mysqlServer) clean(ctx context.Context, topic string, retention time.Duration) (deleted int64, err error) {
	groups, err := offsets(ctx, m.db, `SELECT min(filled) FROM oncemill_sql_queues WHERE topic = ? GROUP BY topic`, topic)
	if err != nil || len(groups) == 0 || groups[0] == 0 {
		return 0, err // without a group nothing is settled, and where one is not filled yet, it is not known what is
	}
	from := int64(0)
	for {
		old, err := offsets(ctx, m.db, "SELECT `offset` FROM (SELECT `offset`, created_at FROM "+quoted(topic)+" WHERE `offset` > ? ORDER BY `offset` LIMIT ?) AS oldest "+
			"WHERE created_at < NOW(6) - INTERVAL ? MICROSECOND - INTERVAL 1 SECOND ORDER BY `offset`", from, cleanBatch, retention.Microseconds())
		if err != nil || len(old) == 0 {
			return deleted, err
		}
		from = old[len(old)-1]
		needed, err := offsets(ctx, m.db, "SELECT DISTINCT l.place FROM "+list(old)+" STRAIGHT_JOIN oncemill_sql_queues q STRAIGHT_JOIN oncemill_sql_deliveries d ON d.queue = q.id AND d.`offset` = l.place WHERE q.topic = ?", topic)
		if err != nil {
			return deleted, fmt.Errorf("reading what is not settled of %s: %w", topic, err)
		}
		rest := slices.DeleteFunc(slices.Clone(old), func(offset int64) bool { return slices.Contains(needed, offset) })
		if len(rest) > 0 {
			n, err := changed(ctx, m.db, "DELETE m FROM "+list(rest)+" STRAIGHT_JOIN "+quoted(topic)+" m ON m.`offset` = l.place")
			if err != nil {
				return deleted, fmt.Errorf("deleting settled messages of %s: %w", topic, err)
			}
			deleted += n
		}
		if len(old) < cleanBatch {
			return deleted, nil
		}
	}
}
