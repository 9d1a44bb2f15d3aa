// Package mysqlstore keeps keys, outbox, parked messages and attempts in MySQL (8.0.19 or later) or MariaDB (10.6 or later), beside the
// tables of the handlers.
//
// # Guarantees
//
// Key, business rows, result, outgoing and parked messages of a message commit together, with the server's durability
// (innodb_flush_log_at_trx_commit=1, which is its default). A crash before COMMIT leaves nothing; a crash after it leaves everything. When the
// connection breaks during COMMIT, the error says that the outcome is unknown; a new claim of the key finds it out, and
// waits for a commit that is still on its way. It holds for tables of InnoDB: another engine has no transactions.
//
// Keys and scopes are binary columns: two keys are the same if their bytes are, whatever the server's character set and collation. All times
// are the server's, in UTC.
//
// A claim waits for a rival's uncommitted claim of the same key, at most the lock timeout. Claims of one call are taken in the keys' order, under READ
// COMMITTED, so that they do not deadlock with each other. The server rolls back one of two transactions that deadlock all the
// same, also over business tables: no further statement of it runs, and a fresh transaction follows.
//
// A statement that ends the transaction (CREATE, ALTER, TRUNCATE, LOCK TABLES and so on) is refused in a handler.
//
// Not promised: anything about a failover to a replica that had not received a confirmed commit, nor exclusive migrations over
// several primaries (the lock is one server's). The server needs row-based or mixed binary logs, if it writes any.
package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Factory makes the database named "mysql".
func Factory() store.Factory {
	return store.Factory{
		Name:         "mysql",
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

// Store is one MySQL or MariaDB database. Safe for concurrent use.
type Store struct {
	cfg       Config
	logger    *slog.Logger
	connector *connector
	db        *sqlx.DB
	core      *sqlcore.Core
}

var _ store.Store = (*Store)(nil)

// Open connects with a pool of its own. It neither migrates nor needs tables.
func Open(ctx context.Context, c Config, opts store.Options) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	s := &Store{cfg: c, logger: opts.Logger}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	configure := func() (*mysql.Config, error) { return c.driverConfig(opts) }
	cfg, err := configure()
	if err != nil {
		return nil, fmt.Errorf("mysql: %w", err)
	}
	s.connector = &connector{configure: configure, lockWait: c.lockWait(), optional: c.Schema != ""}
	s.db = sqlx.NewDb(sql.OpenDB(s.connector), "mysql")
	open := c.MaxOpen
	if open == 0 {
		open = max(opts.Connections, defaultMaxOpen)
	}
	s.db.SetMaxOpenConns(open)
	s.db.SetMaxIdleConns(open)
	s.db.SetConnMaxIdleTime(5 * time.Minute)
	s.core = sqlcore.New(c.dialect(), newSender(s.db, c), sqlcore.Options{
		Capabilities: keystore.Capabilities{Transactional: true, Durable: true},
		Outbox:       "`" + strings.ReplaceAll(cfg.DBName, "`", "``") + "`.outbox",
	})
	if err := s.check(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (c Config) dialect() dialect { return dialect{cmp.Or(c.Clock, serverClock)} }

func (c Config) lockWait() time.Duration {
	if c.LockTimeout > 0 {
		return c.LockTimeout
	}
	return sqlcore.DefaultLockTimeout
}

// check asks for what the store needs of the server.
func (s *Store) check(ctx context.Context) error {
	if err := s.Ping(ctx); err != nil {
		return fmt.Errorf("%w; check that the server runs, and dsn", err)
	}
	var version string
	if err := s.db.GetContext(ctx, &version, `SELECT version()`); err != nil {
		return fmt.Errorf("ask for the version of MySQL: %w", err)
	}
	if !mysqlwire.Supported(version) {
		return fmt.Errorf("the server is %s: MySQL 8.0.19 or MariaDB 10.6 is needed", version)
	}
	return nil
}

// Keys implements store.Store.
func (s *Store) Keys() keystore.Store { return s.core.Keys() }

// Outbox implements store.Store. Polling finds what other processes wrote.
func (s *Store) Outbox() outbox.Source { return s.core.Outbox() }

// Parking implements store.Store.
func (s *Store) Parking() parking.Store { return s.core.Parking() }

// DB implements store.Store. Its sessions are in UTC, under READ COMMITTED, and count the rows that a statement found.
func (s *Store) DB() *sqlx.DB { return s.db }

// Dialect implements store.Store.
func (s *Store) Dialect() string { return "mysql" }

// Publish implements store.Store. tx is a *sql.Tx or *sqlx.Tx of this server, of any pool of the driver github.com/go-sql-driver/mysql, whatever
// its database and its time zone.
func (s *Store) Publish(ctx context.Context, tx any, records []outbox.Record) error {
	return s.core.Publish(ctx, tx, records)
}

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.PingContext(ctx); err != nil {
		return fmt.Errorf("ping MySQL: %w", err)
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error { return s.db.Close() }
