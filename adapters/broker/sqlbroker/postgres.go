package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/adapters/internal/pgwire"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// SQLSTATE codes; see appendix A of PostgreSQL's manual.
const (
	undefinedTable      = "42P01"
	lockNotAvailable    = "55P03"
	deadlockDetected    = "40P01"
	serializationFailed = "40001"
	tooManyConnections  = "53300"
	classConnection     = "08"
	classData           = "22"
	classShutdown       = "57P" // shut down, crashed, starting
)

// postgres is the server interface on PostgreSQL 13 and later.
type postgres struct {
	cfg       Config
	configure func() (*pgx.ConnConfig, error)
	pool      *pgxpool.Pool
	logger    *slog.Logger

	mu    sync.Mutex
	plain map[string]bool // whether the topic's payload column is BYTEA
}

var _ server = (*postgres)(nil)

// connectPostgres opens a pool; it does not connect yet.
func connectPostgres(ctx context.Context, cfg Config, clientName string, logger *slog.Logger) (*postgres, error) {
	if cfg.Schema == "" {
		cfg.Schema = "public"
	}
	p := &postgres{cfg: cfg, logger: logger, plain: map[string]bool{}}
	p.configure = func() (*pgx.ConnConfig, error) { return cfg.connConfig(clientName) }
	first, err := p.configure()
	if err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, pgwire.ErrDSN
	}
	pc.ConnConfig = first
	pc.MaxConns = int32(min(cfg.MaxOpen, 10_000)) //nolint:gosec // bounded
	pc.MaxConnIdleTime = time.Minute
	pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		fresh, err := p.configure()
		if err == nil {
			*cc = *fresh
		}
		return err
	}
	pc.AfterConnect = setUp
	if p.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return nil, fmt.Errorf("opening a pool: %w", err)
	}
	return p, nil
}

// session is what our statements rely on. Commits wait for the disk where a default of the server or role says otherwise; a stronger
// setting stays. Every statement is bounded by an index, and the tables grow and shrink faster than statistics follow: the planner
// must not be led by them to read all of a backlog.
const session = `SELECT set_config(name, value, false) FROM (VALUES
	('default_transaction_isolation', 'read committed'), ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
	('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('jit', 'off'), ('lock_timeout', '20s'),
	('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END)
) AS s (name, value)`

func setUp(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, session)
	return err
}

func (p *postgres) close() { p.pool.Close() }

func (p *postgres) ping(ctx context.Context) error {
	var version int
	if err := p.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return pgwire.Explain(fmt.Errorf("ping PostgreSQL: %w", err))
	}
	if version < 130000 {
		return fmt.Errorf("PostgreSQL 13 or later is needed, the server is %d", version/10000)
	}
	return nil
}

func (p *postgres) keeps() (durable bool, caveats []string) { return true, nil }

func (p *postgres) notifies() bool { return true }

// name quotes a name of the schema.
func (p *postgres) name(table string) string { return pgx.Identifier{p.cfg.Schema, table}.Sanitize() }

// messages is the topic's table, as watermill-sql names it. Topics are at most 45 characters long, so that no two of these
// names are cut to the same 63 bytes.
func (p *postgres) messages(topic string) string { return p.name(messagesTable(topic)) }

func messagesTable(topic string) string { return "watermill_" + topic }

// classify marks err as package outbox asks.
func (p *postgres) classify(err error) error {
	var said *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &said):
		switch code := said.Code; {
		case strings.HasPrefix(code, classData):
			return fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
		case code == tooManyConnections, strings.HasPrefix(code, classConnection), strings.HasPrefix(code, classShutdown):
			return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		}
		return err
	case pgwire.Broken(err):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

func hasCode(err error, codes ...string) bool {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return false
	}
	for _, code := range codes {
		if said.Code == code {
			return true
		}
	}
	return false
}

// isPlain reports whether the topic's payload column is BYTEA; the default of watermill-sql is JSON.
func (p *postgres) isPlain(ctx context.Context, topic string) (bool, error) {
	p.mu.Lock()
	plain, known := p.plain[topic]
	p.mu.Unlock()
	if known {
		return plain, nil
	}
	kind, err := p.payloadType(ctx, p.pool, topic)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plain[topic] = kind == "bytea"
	return p.plain[topic], nil
}

// forget drops what is known of the topic's table, which may have been made anew.
func (p *postgres) forget(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.plain, topic)
}
