package sqlbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// publish is one statement, and so one transaction, whose return is its commit.
func (p *postgres) publish(ctx context.Context, topic string, rows []outgoing) error {
	plain, err := p.isPlain(ctx, topic)
	if err != nil {
		return err
	}
	payload := "r.payload"
	if !plain {
		payload = "convert_from(r.payload, 'UTF8')::json"
	}
	uuids, payloads, metadata := make([]string, len(rows)), make([][]byte, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		uuids[i], payloads[i], metadata[i] = r.uuid, r.payload, r.metadata
		if payloads[i] == nil {
			payloads[i] = []byte{}
		}
	}
	_, err = p.pool.Exec(ctx, `INSERT INTO `+p.messages(topic)+` (uuid, payload, metadata, transaction_id)
		SELECT r.uuid, `+payload+`, r.metadata::json, pg_current_xact_id()
		FROM unnest($1::text[], $2::bytea[], $3::text[]) WITH ORDINALITY AS r (uuid, payload, metadata, place) ORDER BY r.place`,
		uuids, payloads, metadata)
	if hasCode(err, undefinedTable) {
		p.forget(topic)
		return errNoTopic
	}
	return err
}

// channel is what processes notify each other on; the payload is "schema/topic".
const channel = "oncemill_sql"

// notify is a transaction of its own: one that notifies commits one at a time with all others of the database that do.
func (p *postgres) notify(ctx context.Context, topics []string) error {
	_, err := p.pool.Exec(ctx, `SELECT pg_notify($1, $2::text || '/' || topic) FROM unnest($3::text[]) AS t (topic)`, channel, p.cfg.Schema, topics)
	return err
}

func (p *postgres) listen(ctx context.Context, ready func(), heard func(topic string)) error {
	cfg, err := p.configure()
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return err
	}
	ready()
	prefix := p.cfg.Schema + "/"
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if len(n.Payload) > len(prefix) && n.Payload[:len(prefix)] == prefix {
			heard(n.Payload[len(prefix):])
		}
	}
}

// cleanBatch is how many messages one step of a clean-up looks at.
const cleanBatch = 1000

// clean walks over the topic's messages from the oldest on. The time of a row is that of the server's clock in the time
// zone of the session that wrote it, as watermill-sql has it.
func (p *postgres) clean(ctx context.Context, topic string, retention time.Duration) (deleted int64, err error) {
	queues := p.name("oncemill_sql_queues")
	var groups []int64
	var filled bool
	if err := p.pool.QueryRow(ctx, `SELECT coalesce(array_agg(id), '{}'), coalesce(bool_and(filled), false) FROM `+queues+` WHERE topic = $1`, topic).
		Scan(&groups, &filled); err != nil || !filled {
		return 0, err // without a group nothing is settled, and where one is not filled yet, it is not known what is
	}
	query := `WITH oldest AS MATERIALIZED (
			SELECT transaction_id, "offset", created_at < localtimestamp - $4 * interval '1 microsecond' AS old FROM ` + p.messages(topic) + `
			WHERE (transaction_id, "offset") > ($1::text::xid8, $2) ORDER BY transaction_id, "offset" LIMIT $3
		), gone AS (
			DELETE FROM ` + p.messages(topic) + ` m USING oldest o WHERE m.transaction_id = o.transaction_id AND m."offset" = o."offset" AND o.old
			AND NOT EXISTS (SELECT 1 FROM unnest($5::bigint[]) AS g (queue) JOIN ` + p.name("oncemill_sql_deliveries") + ` d ON d.queue = g.queue AND d."offset" = o."offset")
			RETURNING 1
		), edge AS (SELECT transaction_id::text AS id, "offset" AS place FROM oldest ORDER BY transaction_id DESC, "offset" DESC LIMIT 1)
		SELECT coalesce((SELECT id FROM edge), ''), coalesce((SELECT place FROM edge), 0),
			(SELECT count(*) FROM oldest WHERE old), (SELECT count(*) FROM gone)`
	from, offset := "0", int64(0)
	for {
		var old, gone int64
		if err := p.pool.QueryRow(ctx, query, from, offset, cleanBatch, retention.Microseconds(), groups).Scan(&from, &offset, &old, &gone); err != nil {
			return deleted, fmt.Errorf("deleting settled messages of %s: %w", topic, err)
		}
		deleted += gone
		if old < cleanBatch {
			return deleted, nil
		}
	}
}
