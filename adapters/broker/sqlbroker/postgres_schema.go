package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/jackc/pgx/v5"
)

var (
	errNoTopic = errors.New("the topic has no table: declare it, or set topology to declare")
	errNoQueue = errors.New("the group has no queue for the topic: declare it, or set topology to declare")
)

// declareLock is the advisory lock of whoever changes tables: "oncesqlb" in ASCII.
const declareLock = int64(0x6f6e636573716c62)

// watermillSchema writes tables as watermill-sql does, with payloads of any kind.
func (p *postgres) watermillSchema() sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: p.messages,
		GeneratePayloadType:       func(string) string { return "BYTEA" },
	}
}

// base are the statements that make our own tables. A delivery is a message that a group has not settled; its row is
// updated in place when it is claimed (the fill factor leaves room for that), and its columns that change are in no index.
func (p *postgres) base(ctx context.Context, db querier) ([]string, error) {
	schema := pgx.Identifier{p.cfg.Schema}.Sanitize()
	var there bool
	if err := db.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, schema).Scan(&there); err != nil {
		return nil, err
	}
	var statements []string
	if !there { // asking with IF NOT EXISTS needs the right to make one
		statements = append(statements, `CREATE SCHEMA `+schema)
	}
	return append(statements,
		`CREATE TABLE IF NOT EXISTS `+p.name("oncemill_sql_queues")+` (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, grp text NOT NULL, active bigint,
			filled boolean NOT NULL DEFAULT false, UNIQUE (topic, grp))`,
		`CREATE TABLE IF NOT EXISTS `+p.name("oncemill_sql_consumers")+` (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue bigint NOT NULL, name text NOT NULL, expires_at timestamptz NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS `+p.name("oncemill_sql_deliveries")+` (
			queue bigint NOT NULL, "offset" bigint NOT NULL, transaction_id xid8 NOT NULL, owner bigint, count integer NOT NULL DEFAULT 0, due timestamptz,
			PRIMARY KEY (queue, "offset"))
			WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0)`,
		// It runs with the rights of its owner: a publisher needs none on our tables.
		`CREATE OR REPLACE FUNCTION `+p.name("oncemill_sql_fan_out")+`() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
		BEGIN
			INSERT INTO `+p.name("oncemill_sql_deliveries")+` (queue, "offset", transaction_id) SELECT TG_ARGV[0]::bigint, "offset", transaction_id FROM fresh;
			RETURN NULL;
		END $$`), nil
}

func trigger(queue int64) string { return fmt.Sprintf("oncemill_fan_out_%d", queue) }

// prepare declares or verifies, as Topology says.
func (p *postgres) prepare(ctx context.Context, topic string, groups []string) error {
	if p.cfg.Topology == Off {
		return nil
	}
	p.forget(topic)
	for {
		missing := p.verify(ctx, topic, groups)
		if missing == nil || p.cfg.Topology == Verify || !errors.Is(missing, errNoTopic) && !errors.Is(missing, errNoQueue) {
			return missing
		}
		err := p.declare(ctx, topic, groups)
		if !hasCode(err, lockNotAvailable, deadlockDetected, serializationFailed) {
			return err
		}
		// Whoever waits for the topic's table makes its publishers wait too, so nobody waits long.
		select {
		case <-ctx.Done():
			return fmt.Errorf("declaring topic %s: an open transaction that wrote to its table stands in the way: %w", topic, err)
		case <-time.After(200*time.Millisecond + rand.N(300*time.Millisecond)):
		}
	}
}

// verify returns nil when table, queues and triggers are there.
func (p *postgres) verify(ctx context.Context, topic string, groups []string) error {
	if _, err := p.payloadType(ctx, p.pool, topic); err != nil {
		return err
	}
	for _, group := range groups {
		if _, err := p.queue(ctx, topic, group); err != nil {
			return err
		}
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// payloadType returns the type of the payload column: bytea, or json. It fails where the table is no table of messages.
func (p *postgres) payloadType(ctx context.Context, db querier, topic string) (string, error) {
	var kind *string
	var columns int
	var there bool
	err := db.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL, max(format_type(atttypid, NULL)) FILTER (WHERE attname = 'payload'),
			count(*) FILTER (WHERE attname IN ('offset', 'uuid', 'payload', 'metadata', 'transaction_id'))
		FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, p.messages(topic)).Scan(&there, &kind, &columns)
	switch {
	case err != nil:
		return "", fmt.Errorf("reading table %s: %w", messagesTable(topic), err)
	case !there:
		return "", fmt.Errorf("topic %s: %w", topic, errNoTopic)
	case columns < 5:
		return "", fmt.Errorf("topic %s: table %s is no message table of watermill-sql's default schema for PostgreSQL; rename the topic", topic, messagesTable(topic))
	case *kind != "bytea" && *kind != "json" && *kind != "jsonb":
		return "", fmt.Errorf("topic %s: payload has the type %s, not bytea or json", topic, *kind)
	}
	return *kind, nil
}

func (p *postgres) queue(ctx context.Context, topic, group string) (int64, error) {
	return p.findQueue(ctx, p.pool, topic, group)
}

// findQueue finds a queue that is filled and whose trigger is in place: a table that was dropped took it along.
func (p *postgres) findQueue(ctx context.Context, db querier, topic, group string) (int64, error) {
	id, filled, err := p.findTrigger(ctx, db, topic, group)
	if err == nil && !filled {
		err = errNoQueue
	}
	if err != nil {
		return 0, fmt.Errorf("group %s of topic %s: %w", group, topic, err)
	}
	return id, nil
}

// findTrigger finds a queue whose trigger is in place.
func (p *postgres) findTrigger(ctx context.Context, db querier, topic, group string) (id int64, filled bool, err error) {
	var known *string
	err = db.QueryRow(ctx, `SELECT to_regclass($1)::text`, p.name("oncemill_sql_queues")).Scan(&known)
	if err == nil && known == nil {
		err = errNoQueue
	}
	if err == nil {
		err = db.QueryRow(ctx, `SELECT q.id, q.filled FROM `+p.name("oncemill_sql_queues")+` q
			JOIN pg_trigger t ON t.tgname = 'oncemill_fan_out_' || q.id AND t.tgrelid = to_regclass($3) AND t.tgenabled IN ('O', 'A')
			WHERE q.topic = $1 AND q.grp = $2`, topic, group, p.messages(topic)).Scan(&id, &filled)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = errNoQueue
	}
	return id, filled, err
}

// declare makes what is missing, in one transaction, and fills the queues that are new, in several.
func (p *postgres) declare(ctx context.Context, topic string, groups []string) error {
	// The fill of a new queue must see what was committed while it waited: it needs read committed.
	err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', '2s', true), set_config('client_min_messages', 'warning', true)`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, declareLock); err != nil {
			return err
		}
		statements, err := p.base(ctx, tx)
		if err != nil {
			return err
		}
		for _, query := range p.watermillSchema().SchemaInitializingQueries(topic) {
			statements = append(statements, query.Query)
		}
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		if _, err := p.payloadType(ctx, tx, topic); err != nil {
			return err
		}
		for _, group := range groups {
			if err := p.declareQueue(ctx, tx, topic, group); err != nil {
				return err
			}
		}
		return nil
	})
	for _, group := range groups {
		if err == nil {
			err = p.fill(ctx, topic, group)
		}
	}
	if err != nil {
		return fmt.Errorf("declaring topic %s: %w", topic, err)
	}
	return nil
}

// declareQueue makes a queue. Making the trigger waits until every transaction that wrote to the topic has ended, and keeps
// others from writing until this one commits; so each message is either seen by the fill or put in by the trigger. That
// holds at every isolation level, because triggers are no data: a transaction with an old snapshot fires new ones too. Nobody claims from the queue
// before it is filled.
func (p *postgres) declareQueue(ctx context.Context, tx pgx.Tx, topic, group string) error {
	if _, _, err := p.findTrigger(ctx, tx, topic, group); !errors.Is(err, errNoQueue) {
		return err // another replica may be filling it
	}
	var id int64
	if err := tx.QueryRow(ctx, `INSERT INTO `+p.name("oncemill_sql_queues")+` (topic, grp) VALUES ($1, $2)
		ON CONFLICT (topic, grp) DO UPDATE SET active = NULL, filled = false RETURNING id`, topic, group).Scan(&id); err != nil {
		return err
	}
	for _, statement := range []string{
		fmt.Sprintf(`DROP TRIGGER IF EXISTS %s ON %s`, trigger(id), p.messages(topic)),
		fmt.Sprintf(`CREATE TRIGGER %s AFTER INSERT ON %s REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION %s('%d')`,
			trigger(id), p.messages(topic), p.name("oncemill_sql_fan_out"), id),
		fmt.Sprintf(`DELETE FROM %s WHERE queue = %d`, p.name("oncemill_sql_deliveries"), id),
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// fill puts the messages that are there into a queue that is not filled, a portion in each transaction. What the trigger put in stays. Several
// replicas may do so at once: who finds it filled has nothing left to do.
func (p *postgres) fill(ctx context.Context, topic, group string) error {
	from, offset, done := "0", int64(0), false
	query := `WITH part AS MATERIALIZED (
			SELECT transaction_id, "offset" FROM ` + p.messages(topic) + ` WHERE (transaction_id, "offset") > ($2::text::xid8, $3) ORDER BY transaction_id, "offset" LIMIT $4
		), put AS (
			INSERT INTO ` + p.name("oncemill_sql_deliveries") + ` (queue, "offset", transaction_id) SELECT $1, "offset", transaction_id FROM part ON CONFLICT DO NOTHING
		), edge AS (SELECT transaction_id::text AS id, "offset" AS place FROM part ORDER BY transaction_id DESC, "offset" DESC LIMIT 1)
		SELECT coalesce((SELECT id FROM edge), ''), coalesce((SELECT place FROM edge), 0), (SELECT count(*) FROM part)`
	for !done {
		err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			var id, n int64
			err := tx.QueryRow(ctx, `SELECT id FROM `+p.name("oncemill_sql_queues")+` WHERE topic = $1 AND grp = $2 AND NOT filled FOR UPDATE`, topic, group).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				done = true
				return nil
			}
			if err == nil {
				err = tx.QueryRow(ctx, query, id, from, offset, portion).Scan(&from, &offset, &n)
			}
			if err == nil && n < portion {
				done = true
				_, err = tx.Exec(ctx, `UPDATE `+p.name("oncemill_sql_queues")+` SET filled = true WHERE id = $1`, id)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("filling the queue of group %s: %w", group, err)
		}
	}
	return nil
}
