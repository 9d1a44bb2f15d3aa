// Package sqlitestore keeps keys, outbox, parked messages and attempts in a SQLite file, beside the
// tables of the handlers.
//
// # Guarantees
//
// A committed transaction survives a crash of the process and of the machine: the file is in WAL mode with
// synchronous=FULL, each commit is flushed. That holds as far as the disk keeps what it confirmed; not on a network file system.
//
// Key, business rows, result, outgoing and parked messages of a message commit together. A crash
// before the commit leaves nothing; after it, everything.
//
// There is one writer at a time. Writers of all processes on one machine queue fairly (two locked files beside the database); a
// process that dies gives its place free at once. The clock is the machine's: lease times are wrong while it is set.
//
// Not promised: use over a network file system, or from two machines.
package sqlitestore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Config sets up the store.
type Config struct {
	// Path is the database file. It and its folder are made where they are missing, readable by the owner only.
	// Defaults to oncemill.db in the application's data folder.
	Path string `yaml:"path"`

	// Now replaces the machine's clock in tests.
	Now func() time.Time `yaml:"-"`
}

// Factory makes the database named "sqlite".
func Factory() store.Factory {
	return store.Factory{
		Name:         "sqlite",
		Capabilities: keystore.Capabilities{Transactional: true, Durable: true, Writers: 1},
		Open: func(ctx context.Context, decode func(any) error, opts store.Options) (store.Store, error) {
			var c Config
			if err := decode(&c); err != nil {
				return nil, err
			}
			return Open(ctx, c, opts)
		},
		Check: func(decode func(any) error) error {
			var c Config
			return decode(&c)
		},
		Script: func(_ func(any) error, sets []store.MigrationSet) (string, error) {
			all, err := migrationSets(sets)
			if err != nil {
				return "", err
			}
			return sqlcore.WholeScript(context.Background(), goose.DialectSQLite3, all)
		},
	}
}

// Store is one open SQLite file. Safe for concurrent use.
type Store struct {
	path   string
	logger *slog.Logger
	core   *sqlcore.Core
	turns  *turnstile
	writer *sqlx.DB
	db     *sqlx.DB
	base   func() *sql.DB // a handle that does not queue: for who has the turn
}

var _ store.Store = (*Store)(nil)

// Open opens the file, and makes it where it is missing. It neither migrates nor needs tables.
func Open(ctx context.Context, c Config, opts store.Options) (*Store, error) {
	s := &Store{path: c.Path, logger: opts.Logger}
	if s.logger == nil {
		s.logger = slog.Default()
	}
	if s.path == "" {
		s.path = filepath.Join(opts.DataDir, "oncemill.db")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if err := s.open(ctx, c, opts); err != nil {
		return nil, errors.Join(fmt.Errorf("open the SQLite database %s: %w", s.path, err), s.Close())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context, c Config, opts store.Options) (err error) {
	if s.path, err = filepath.Abs(s.path); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	ready, err := prepareFile(s.path)
	if err != nil {
		return err
	}
	if s.turns, err = newTurnstile(s.path); err != nil {
		return err
	}
	base, err := sqlite.NewConnector(dsn(s.path))
	if err != nil {
		return err
	}
	s.base = func() *sql.DB { return sql.OpenDB(base) }
	queued := connector{Connector: base, turns: s.turns}
	s.writer = sqlx.NewDb(sql.OpenDB(queued), driverName)
	s.writer.SetMaxOpenConns(1)
	s.db = sqlx.NewDb(sql.OpenDB(queued), driverName)
	s.db.SetMaxOpenConns(max(opts.Connections, 4))
	s.db.SetMaxIdleConns(4)

	d := dialect{now: c.Now}
	s.core = sqlcore.New(d, &sender{Plain: sqlcore.Plain{Dialect: d, Writer: s.writer, Reader: s.db, Undone: undone}, turns: s.turns},
		sqlcore.Options{Capabilities: capabilities()})
	return s.setUp(ctx, ready)
}

// prepareFile makes the file where it is missing, and reports whether it is in WAL mode already, which stands in its header.
func prepareFile(path string) (wal bool, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	version := make([]byte, 2)
	if _, err := file.ReadAt(version, walVersionOffset); err != nil {
		return false, nil // an empty file has no header yet
	}
	return version[0] == walVersion && version[1] == walVersion, nil
}

// Bytes of SQLite's file header: the versions needed to write and to read.
const (
	walVersionOffset = 18
	walVersion       = 2
)

// driverName is what sqlx knows SQLite's placeholders by.
const driverName = "sqlite3"

func dsn(path string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)", "fullfsync(ON)", "checkpoint_fullfsync(ON)",
	}}
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + q.Encode()
}

func capabilities() keystore.Capabilities {
	return keystore.Capabilities{
		Transactional: true, Durable: true, Writers: 1,
		Caveats: []string{"SQLite has one writer: all transactions of all processes on this file follow one another."},
	}
}

// setUp opens the first connection, with the turn where the file is not in WAL mode yet: the switch needs the file alone.
func (s *Store) setUp(ctx context.Context, ready bool) error {
	if !ready {
		leave, err := s.turns.enter(ctx, false, migrateWait)
		if err != nil {
			return err
		}
		defer leave()
	}
	var mode string
	if err := s.writer.GetContext(ctx, &mode, `PRAGMA journal_mode`); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file cannot be used in WAL mode (it is in %q): put it on a local disk", mode)
	}
	return nil
}

// Keys implements store.Store.
func (s *Store) Keys() keystore.Store { return s.core.Keys() }

// Outbox implements store.Store.
func (s *Store) Outbox() outbox.Source { return s.core.Outbox() }

// Parking implements store.Store.
func (s *Store) Parking() parking.Store { return s.core.Parking() }

// DB implements store.Store. Transactions that it begins queue for their turn as the store's own do; begin them read-only where they only read.
func (s *Store) DB() *sqlx.DB { return s.db }

// Dialect implements store.Store.
func (s *Store) Dialect() string { return "sqlite" }

// Publish implements store.Store. tx is a *sql.Tx or *sqlx.Tx that was begun on DB.
func (s *Store) Publish(ctx context.Context, tx any, records []outbox.Record) error {
	return s.core.Publish(ctx, tx, records)
}

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	if err := s.db.GetContext(ctx, &one, `SELECT 1`); err != nil {
		return fmt.Errorf("ping the SQLite database: %w", err)
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error {
	var errs []error
	if s.writer != nil {
		errs = append(errs, s.writer.Close(), s.db.Close())
	}
	if s.turns != nil {
		errs = append(errs, s.turns.close())
	}
	return errors.Join(errs...)
}

// Migrate implements store.Store. It has the writer's turn from its first to its last step.
func (s *Store) Migrate(ctx context.Context, sets []store.MigrationSet) error {
	all, err := migrationSets(sets)
	if err != nil {
		return err
	}
	leave, err := s.turns.enter(ctx, false, migrateWait)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer leave()
	db := s.base()
	defer func() { _ = db.Close() }()
	return sqlcore.MigrateUp(ctx, db, goose.DialectSQLite3, all, s.logger)
}

// migrateWait is how long a replica waits while another one migrates, also to open the file that the other is making.
const migrateWait = 10 * time.Minute

// Pending implements store.Store.
func (s *Store) Pending(ctx context.Context, sets []store.MigrationSet) ([]string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return nil, err
	}
	return sqlcore.PendingMigrations(ctx, s.db.DB, goose.DialectSQLite3, all, s.tableExists(ctx))
}

// PendingScript implements store.Store.
func (s *Store) PendingScript(ctx context.Context, sets []store.MigrationSet) (string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return "", err
	}
	return sqlcore.PendingScript(ctx, s.db.DB, goose.DialectSQLite3, all, s.tableExists(ctx))
}

func (s *Store) tableExists(ctx context.Context) func(table string) (bool, error) {
	return func(table string) (bool, error) {
		var n int
		err := s.db.GetContext(ctx, &n, `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?`, table)
		return n > 0, err
	}
}

func migrationSets(sets []store.MigrationSet) ([]sqlcore.MigrationSet, error) {
	return sqlcore.MigrationSets(migrations, sets, "sqlite")
}
