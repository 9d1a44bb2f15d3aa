package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

func (p *postgres) join(ctx context.Context, queue int64, name string, visibility time.Duration) (consumer int64, err error) {
	err = p.pool.QueryRow(ctx, `INSERT INTO `+p.name("oncemill_sql_consumers")+` (queue, name, expires_at)
		VALUES ($1, $2, clock_timestamp() + $3 * interval '1 microsecond') RETURNING id`, queue, name, visibility.Microseconds()).Scan(&consumer)
	if err == nil {
		err = p.reap(ctx, queue)
	}
	if err != nil {
		return 0, fmt.Errorf("joining as a consumer: %w", err)
	}
	return consumer, nil
}

func (p *postgres) beat(ctx context.Context, queue, consumer int64, visibility time.Duration) (alive bool, err error) {
	var dead bool
	err = p.pool.QueryRow(ctx, `UPDATE `+p.name("oncemill_sql_consumers")+` SET expires_at = clock_timestamp() + $3 * interval '1 microsecond'
		WHERE id = $2 RETURNING EXISTS (SELECT 1 FROM `+p.name("oncemill_sql_consumers")+` WHERE queue = $1 AND expires_at < clock_timestamp() AND id <> $2)`,
		queue, consumer, visibility.Microseconds()).Scan(&dead)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err == nil && dead {
		err = p.reap(ctx, queue)
	}
	if err != nil {
		return true, fmt.Errorf("extending a consumer's life: %w", err)
	}
	return true, nil
}

// reap removes dead consumers and frees what they held.
func (p *postgres) reap(ctx context.Context, queue int64) error {
	return pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return p.reapIn(ctx, tx, queue)
	})
}

// reapIn works in steps, each with a view of its own. One reaper at a time, so that nothing which another freed, and a new
// consumer claimed, is freed again. A claim of a dying consumer locks its row: removing that waits for the claim, which the next step then sees.
func (p *postgres) reapIn(ctx context.Context, tx pgx.Tx, queue int64) error {
	for _, statement := range []string{
		`SELECT 1 FROM ` + p.name("oncemill_sql_queues") + ` WHERE id = $1 FOR UPDATE`,
		`DELETE FROM ` + p.name("oncemill_sql_consumers") + ` WHERE queue = $1 AND expires_at < clock_timestamp()`,
		`UPDATE ` + p.name("oncemill_sql_deliveries") + ` d SET owner = NULL WHERE d.queue = $1 AND d.owner IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM ` + p.name("oncemill_sql_consumers") + ` c WHERE c.id = d.owner)`,
	} {
		if _, err := tx.Exec(ctx, statement, queue); err != nil {
			return fmt.Errorf("freeing what dead consumers held: %w", err)
		}
	}
	return nil
}

func (p *postgres) activate(ctx context.Context, queue, consumer int64) (active bool, err error) {
	queues, consumers := p.name("oncemill_sql_queues"), p.name("oncemill_sql_consumers")
	const free = ` WHERE id = $1 AND (active IS NULL OR active = $2 OR NOT EXISTS (SELECT 1 FROM %s c WHERE c.id = active AND c.expires_at > clock_timestamp()))`
	if err := p.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM `+queues+fmt.Sprintf(free, consumers)+`)`, queue, consumer).Scan(&active); err != nil || !active {
		return false, err
	}
	err = pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE `+queues+` SET active = $2`+fmt.Sprintf(free, consumers), queue, consumer)
		if active = tag.RowsAffected() == 1; err != nil || !active {
			return err
		}
		return p.reapIn(ctx, tx, queue)
	})
	if err != nil {
		return false, fmt.Errorf("becoming the active consumer: %w", err)
	}
	return active, nil
}

func (p *postgres) leave(ctx context.Context, queue, consumer int64) error {
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE `+p.name("oncemill_sql_queues")+` SET active = NULL WHERE id = $1 AND active = $2`, queue, consumer)
	batch.Queue(`DELETE FROM `+p.name("oncemill_sql_consumers")+` WHERE id = $1`, consumer)
	if err := p.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("leaving as a consumer: %w", err)
	}
	return nil
}

func (p *postgres) claim(ctx context.Context, c claim) ([]row, error) {
	plain, err := p.isPlain(ctx, c.topic)
	if err != nil {
		return nil, err
	}
	payload, lock := "m.payload", "FOR UPDATE SKIP LOCKED"
	if !plain {
		payload = "convert_to(m.payload::text, 'UTF8')"
	}
	if c.wait {
		lock = "FOR UPDATE"
	}
	deliveries := p.name("oncemill_sql_deliveries")
	rows, err := p.pool.Query(ctx, `WITH me AS MATERIALIZED (
			SELECT id FROM `+p.name("oncemill_sql_consumers")+` WHERE id = $2 FOR KEY SHARE
		), ready AS MATERIALIZED (
			SELECT "offset" FROM `+deliveries+` WHERE queue = $1 AND "offset" >= $4 AND owner IS NULL AND (due IS NULL OR due <= (SELECT clock_timestamp()))
			ORDER BY "offset" LIMIT $3 `+lock+`
		), taken AS (
			UPDATE `+deliveries+` d SET owner = me.id, count = d.count + 1 FROM me, ready r
			WHERE d.queue = $1 AND d."offset" = r."offset" RETURNING d."offset", d.transaction_id, d.count
		)
		SELECT t."offset", t.count, m.uuid IS NULL, coalesce(m.uuid, ''), `+payload+`, m.metadata::text
		FROM taken t LEFT JOIN `+p.messages(c.topic)+` m ON m.transaction_id = t.transaction_id AND m."offset" = t."offset"`,
		c.queue, c.consumer, c.limit, c.from)
	if err != nil {
		return nil, fmt.Errorf("claiming messages: %w", err)
	}
	claimed, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (m row, err error) {
		var metadata *string
		err = r.Scan(&m.offset, &m.count, &m.missing, &m.uuid, &m.payload, &metadata)
		if metadata != nil {
			m.metadata = []byte(*metadata)
		}
		return m, err
	})
	if hasCode(err, undefinedTable) {
		p.forget(c.topic)
		return nil, fmt.Errorf("claiming messages: %w", errNoTopic)
	}
	if err != nil {
		return nil, fmt.Errorf("claiming messages: %w", err)
	}
	slices.SortFunc(claimed, func(a, b row) int { return int(min(max(a.offset-b.offset, -1), 1)) })
	return claimed, nil
}

func (p *postgres) tidy(ctx context.Context, queue, consumer int64, has []int64) error {
	err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1 FROM `+p.name("oncemill_sql_consumers")+` WHERE id = $1 FOR UPDATE`, consumer); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE `+p.name("oncemill_sql_deliveries")+` SET owner = NULL, count = count - 1
			WHERE queue = $1 AND owner = $2 AND "offset" <> ALL($3)`, queue, consumer, has)
		return err
	})
	if err != nil {
		return fmt.Errorf("freeing what a lost claim took: %w", err)
	}
	return nil
}

func (p *postgres) settle(ctx context.Context, queue, consumer int64, s settlements) error {
	deliveries := p.name("oncemill_sql_deliveries")
	batch := &pgx.Batch{}
	if len(s.acked) > 0 {
		slices.Sort(s.acked)
		batch.Queue(`DELETE FROM `+deliveries+` WHERE queue = $1 AND "offset" = ANY($2) AND owner = $3`, queue, s.acked, consumer)
	}
	if len(s.untouched) > 0 {
		slices.Sort(s.untouched)
		batch.Queue(`UPDATE `+deliveries+` SET owner = NULL, count = count - 1 WHERE queue = $1 AND "offset" = ANY($2) AND owner = $3`, queue, s.untouched, consumer)
	}
	if len(s.nacked) > 0 {
		offsets, delays := make([]int64, len(s.nacked)), make([]int64, len(s.nacked))
		for i, n := range s.nacked {
			offsets[i], delays[i] = n.offset, n.delay.Microseconds()
		}
		batch.Queue(`UPDATE `+deliveries+` d SET owner = NULL, due = clock_timestamp() + n.delay * interval '1 microsecond'
			FROM unnest($2::bigint[], $4::bigint[]) AS n (place, delay) WHERE d.queue = $1 AND d."offset" = n.place AND d.owner = $3`,
			queue, offsets, consumer, delays)
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := p.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("settling messages: %w", err)
	}
	return nil
}

func (p *postgres) last(ctx context.Context, queue int64) (int64, bool, error) {
	var offset *int64
	if err := p.pool.QueryRow(ctx, `SELECT max("offset") FROM `+p.name("oncemill_sql_deliveries")+` WHERE queue = $1`, queue).Scan(&offset); err != nil {
		return 0, false, fmt.Errorf("reading where the queue ends: %w", err)
	}
	if offset == nil {
		return 0, false, nil
	}
	return *offset, true, nil
}

func (p *postgres) settledUpTo(ctx context.Context, queue, offset int64) (bool, error) {
	var settled bool
	err := p.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT 1 FROM `+p.name("oncemill_sql_deliveries")+` WHERE queue = $1 AND "offset" <= $2)`, queue, offset).Scan(&settled)
	if err != nil {
		return false, fmt.Errorf("reading what is left of the backlog: %w", err)
	}
	return settled, nil
}
