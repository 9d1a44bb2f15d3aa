package sqlcore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// maxSetRows bounds the rows of one statement: databases bound the number of its arguments.
const maxSetRows = 500

const intoOutbox = `INSERT INTO outbox`

const insertOutgoing = `WITH v(lane, topic, message_uuid, idempotency_key, ordering_key, metadata, payload, scope, parent_key, deliver_at, ord) AS ({rows})
` + intoOutbox + ` (lane, topic, message_uuid, idempotency_key, ordering_key, metadata, payload, scope, parent_key, deliver_at, due_at, created_at)
SELECT v.lane, v.topic, v.message_uuid, v.idempotency_key, v.ordering_key, v.metadata, v.payload, v.scope, v.parent_key, v.deliver_at, v.deliver_at, {now}
FROM v WHERE true ORDER BY v.ord`

// insertOutbox writes records in the order of the slice.
func insertOutbox(records []outbox.Record) []*Stmt {
	var stmts []*Stmt
	for len(records) > 0 {
		n := min(len(records), maxSetRows)
		stmts = append(stmts, insertRecords(records[:n]))
		records = records[n:]
	}
	return stmts
}

func insertRecords(records []outbox.Record) *Stmt {
	s := &Stmt{Query: insertOutgoing, Set: &Set{Types: []string{"int", "text", "text", "text", "text", "bytes", "bytes", "text", "text", "time"}}}
	for _, r := range records {
		var deliverAt any
		if !r.DeliverAt.IsZero() {
			deliverAt = r.DeliverAt.UTC().Round(time.Microsecond)
		}
		s.Set.Rows = append(s.Set.Rows, []any{
			int64(r.Lane()), r.Topic, r.UUID, r.Key, r.OrderingKey, encodeMetadata(r.Metadata), notNil(r.Payload), r.Scope, r.ParentKey, deliverAt,
		})
	}
	return s
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Execer runs one statement in a transaction of somebody else's.
type Execer func(ctx context.Context, query string, args []any) error

// Publish writes records through a caller's transaction: *sql.Tx, *sqlx.Tx or an Execer.
func (c *Core) Publish(ctx context.Context, tx any, records []outbox.Record) error {
	var run Execer
	switch t := tx.(type) {
	case *sqlx.Tx:
		run = execer(t.Tx)
	case *sql.Tx:
		run = execer(t)
	case Execer:
		run = t
	default:
		return fmt.Errorf("publish through a %T: pass a *sql.Tx or a *sqlx.Tx of this database", tx)
	}
	for _, s := range insertOutbox(records) {
		for _, phrase := range phrases(c.dialect, s) {
			query, args := c.dialect.Bind(phrase)
			query = strings.Replace(query, intoOutbox, `INSERT INTO `+c.outside, 1) // all values are arguments
			if err := run(ctx, query, args); err != nil {
				return fmt.Errorf("write outgoing messages: %w", err)
			}
		}
	}
	return nil
}

func execer(t *sql.Tx) Execer {
	return func(ctx context.Context, query string, args []any) error {
		_, err := t.ExecContext(ctx, query, args...)
		return err
	}
}
