// Package pgstore keeps keys, outbox, parked messages and attempts in PostgreSQL, beside the tables of the handlers.
//
// # Guarantees
//
// Key, business rows, result, outgoing and parked messages of a message commit together, with the server's durability
// (synchronous_commit=on, which is its default). A crash before COMMIT leaves nothing; a crash after it leaves everything. When the
// connection breaks during COMMIT, the error says that the outcome is unknown; a new claim of the key finds it out, and
// waits for a commit that is still on its way.
//
// A claim waits for a rival's uncommitted claim of the same key, at most the lock timeout. Claims of one call are taken in the keys' order,
// so that they never deadlock with each other. All times are the server's.
//
// It works through PgBouncer in transaction mode: from 1.21 on with max_prepared_statements, before that with
// default_query_exec_mode=cache_describe in the connection string; the schema is then the search_path of the role. Migrating needs two server
// connections of the pool. LISTEN does not get through: then polling finds what other processes wrote.
//
// Not promised: anything about a failover to a replica that had not received a confirmed commit (asynchronous replication
// loses key and effect together; the broker may have been told that the message is done).
package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/internal/pgwire"
	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Factory makes the database named "postgres".
func Factory() store.Factory {
	return store.Factory{
		Name:         "postgres",
		Capabilities: keystore.Capabilities{Transactional: true, Durable: true},
		Open: func(ctx context.Context, decode func(any) error, opts store.Options) (store.Store, error) {
			var c Config
			if err := decode(&c); err != nil {
				return nil, err
			}
			return Open(ctx, c, opts)
		},
		Check: func(decode func(any) error) error {
			var c Config
			if err := decode(&c); err != nil {
				return err
			}
			return c.Validate()
		},
		Script: func(decode func(any) error, sets []store.MigrationSet) (string, error) {
			var c Config
			if err := decode(&c); err != nil {
				return "", err
			}
			return c.wholeScript(context.Background(), sets)
		},
	}
}

// Store is one PostgreSQL database. Safe for concurrent use.
type Store struct {
	cfg     Config
	logger  *slog.Logger
	db      *sqlx.DB
	core    *sqlcore.Core
	connect func(ctx context.Context) (*pgx.Conn, error) // a connection beside the pool
	bell    *bell
	owned   bool
}

var _ store.Store = (*Store)(nil)

// Open connects with a pool of its own. It neither migrates nor needs tables.
func Open(ctx context.Context, c Config, opts store.Options) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	c = c.withDefaults()
	configure := func(ctx context.Context) (*pgx.ConnConfig, error) { return c.connConfig(ctx, opts) }
	first, err := configure(ctx)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	pool := sql.OpenDB(connector{stdlib.GetConnector(*first, stdlib.OptionBeforeConnect(func(ctx context.Context, cfg *pgx.ConnConfig) error {
		fresh, err := configure(ctx)
		if err == nil {
			*cfg = *fresh
		}
		return err
	}))})
	open := c.MaxOpen
	if open == 0 {
		open = max(opts.Connections, defaultMaxOpen)
	}
	pool.SetMaxOpenConns(open)
	pool.SetMaxIdleConns(open)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	s := newStore(sqlx.NewDb(pool, "pgx"), c, opts.Logger)
	s.owned = true
	s.connect = func(ctx context.Context) (*pgx.Conn, error) {
		cfg, err := configure(ctx)
		if err != nil {
			return nil, err
		}
		return pgx.ConnectConfig(ctx, cfg)
	}
	s.init(&pipeline{db: s.db, setUp: s.setUp})
	if err := s.Ping(ctx); err != nil {
		return nil, errors.Join(pgwire.Explain(err), s.Close())
	}
	return s, nil
}

// New makes a store on a pool of the caller's, opened through pgx's database/sql driver ("pgx"). Close leaves the pool open. Of the
// configuration, LockTimeout counts; the search_path of the pool's connections is the caller's to set. Statements are sent one by one: a
// store that Open made needs fewer round trips.
func New(db *sqlx.DB, c Config) *Store {
	s := newStore(db, c.withDefaults(), slog.Default())
	s.connect = func(ctx context.Context) (*pgx.Conn, error) { return connectLike(ctx, db.DB) }
	s.init(&sqlcore.Plain{
		Dialect: dialect{}, Writer: db, Reader: db, Options: isolation, Undone: undone,
		Setup: s.setUp,
	})
	return s
}

// connectLike opens a connection as those of the pool are.
func connectLike(ctx context.Context, db *sql.DB) (*pgx.Conn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var cfg *pgx.ConnConfig
	err = conn.Raw(func(c any) error {
		pc, ok := c.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the pool's driver is %T: open it with the driver \"pgx\"", c)
		}
		cfg = pc.Conn().Config()
		cfg.OnNotification = nil // it leads to the pool's connection
		return nil
	})
	if err := errors.Join(err, conn.Close()); err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

func newStore(db *sqlx.DB, c Config, logger *slog.Logger) *Store {
	if logger == nil {
		logger = slog.Default()
	}
	return &Store{cfg: c, logger: logger, db: db}
}

func (s *Store) init(sender sqlcore.Sender) {
	run := func(ctx context.Context, query string, args ...any) error {
		_, err := s.db.ExecContext(ctx, query, args...)
		return err
	}
	s.bell = (&bell{run: run, connect: s.connect, heard: func() { s.core.WakeRelay() }, logger: s.logger}).init()
	outside := "" // what a pool of the caller's searches is the caller's matter
	if s.owned && s.cfg.Schema != defaultSchema {
		outside = pgx.Identifier{s.cfg.Schema, "outbox"}.Sanitize()
	}
	s.core = sqlcore.New(dialect{}, sender, sqlcore.Options{
		Capabilities: keystore.Capabilities{Transactional: true, Durable: true},
		OnOutgoing:   s.bell.ring, OnWatch: s.bell.listen, Outbox: outside,
	})
}

func (s *Store) setUp(opts keystore.TxOptions) []string {
	wait := opts.LockTimeout
	if wait <= 0 {
		wait = s.cfg.LockTimeout
	}
	if wait <= 0 {
		wait = sqlcore.DefaultLockTimeout
	}
	return []string{"SET LOCAL lock_timeout = " + strconv.FormatInt(max(wait.Milliseconds(), 1), 10)}
}

func isolation(ctx context.Context, opts keystore.TxOptions) (context.Context, *sql.TxOptions) {
	switch opts.Isolation {
	case "repeatable read":
		return ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
	case "serializable":
		return ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
	return ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// Keys implements store.Store.
func (s *Store) Keys() keystore.Store { return s.core.Keys() }

// Outbox implements store.Store.
func (s *Store) Outbox() outbox.Source { return s.core.Outbox() }

// Parking implements store.Store.
func (s *Store) Parking() parking.Store { return s.core.Parking() }

// DB implements store.Store. To reach pgx through its connections' Raw, ask for a method Conn() *pgx.Conn.
func (s *Store) DB() *sqlx.DB { return s.db }

// Dialect implements store.Store.
func (s *Store) Dialect() string { return "postgres" }

// Publish implements store.Store. tx is a *sql.Tx or *sqlx.Tx of any pool of pgx's driver, or a pgx.Tx. Where the configuration sets no
// schema, tx must search the schema of the tables, as the store's own connections do.
func (s *Store) Publish(ctx context.Context, tx any, records []outbox.Record) error {
	if native, ok := tx.(pgx.Tx); ok {
		tx = sqlcore.Execer(func(ctx context.Context, query string, args []any) error {
			_, err := native.Exec(ctx, query, args...)
			return err
		})
	}
	return s.core.Publish(ctx, tx, records)
}

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, `SELECT 1`); err != nil {
		return fmt.Errorf("ping PostgreSQL: %w", err)
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.bell.close()
	if !s.owned {
		return nil
	}
	return s.db.Close()
}
