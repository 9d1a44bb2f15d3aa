package pgstore

import (
	"context"
	"embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/adapters/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock that one migrating replica holds: "oncemill" in ASCII.
const migrationLock = int64(0x6f6e63656d696c6c)

// Migrate implements store.Store. The lock is held by a transaction on a connection of its own: it is given back when that
// connection ends, however it ends, and a PgBouncer in transaction mode keeps the transaction on one server connection.
func (s *Store) Migrate(ctx context.Context, sets []store.MigrationSet) error {
	all, err := migrationSets(sets)
	if err != nil {
		return err
	}
	lock, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("migrate: connect: %w", err)
	}
	defer func() { _ = lock.Close(context.WithoutCancel(ctx)) }()
	if err := s.lockMigrations(ctx, lock); err != nil {
		return fmt.Errorf("migrate: wait for other replicas: %w", err)
	}
	if err := s.makeSchema(ctx); err != nil {
		return fmt.Errorf("migrate: schema %s: %w", s.cfg.Schema, err)
	}
	return sqlcore.MigrateUp(ctx, s.db.DB, goose.DialectPostgres, all, s.logger)
}

// makeSchema makes the schema where it is missing. It looks first: for IF NOT EXISTS, too, PostgreSQL wants the right to make schemas.
func (s *Store) makeSchema(ctx context.Context) error {
	found, err := s.schemaExists(ctx)
	if err != nil || found {
		return err
	}
	_, err = s.db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{s.cfg.Schema}.Sanitize())
	return err
}

// schemaExists is true also for the default, which is not the store's to make.
func (s *Store) schemaExists(ctx context.Context) (found bool, err error) {
	if s.cfg.Schema == defaultSchema {
		return true, nil
	}
	err = s.db.GetContext(ctx, &found, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, s.cfg.Schema)
	return found, err
}

// lockMigrations waits for the lock outside of any transaction: behind a pooler, waiting transactions would take the server
// connections that the one who migrates needs.
func (s *Store) lockMigrations(ctx context.Context, lock *pgx.Conn) error {
	for {
		locked, err := tryLock(ctx, lock)
		if err != nil || locked {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(migrationPoll/2 + rand.N(migrationPoll)):
		}
	}
}

const migrationPoll = 100 * time.Millisecond

// tryLock leaves a transaction open that has the lock, or none.
func tryLock(ctx context.Context, lock *pgx.Conn) (locked bool, err error) {
	for _, word := range []string{`BEGIN`, `SET LOCAL idle_in_transaction_session_timeout = 0`} {
		if _, err := lock.Exec(ctx, word); err != nil {
			return false, err
		}
	}
	if err := lock.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, migrationLock).Scan(&locked); err != nil || locked {
		return locked, err
	}
	_, err = lock.Exec(ctx, `ROLLBACK`)
	return false, err
}

// Pending implements store.Store.
func (s *Store) Pending(ctx context.Context, sets []store.MigrationSet) ([]string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return nil, err
	}
	return sqlcore.PendingMigrations(ctx, s.db.DB, goose.DialectPostgres, all, s.tableExists(ctx))
}

func (s *Store) tableExists(ctx context.Context) func(table string) (bool, error) {
	return func(table string) (bool, error) {
		var found bool
		err := s.db.GetContext(ctx, &found, `SELECT to_regclass($1) IS NOT NULL`, table)
		return found, err
	}
}

// PendingScript implements store.Store.
func (s *Store) PendingScript(ctx context.Context, sets []store.MigrationSet) (string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return "", err
	}
	script, err := sqlcore.PendingScript(ctx, s.db.DB, goose.DialectPostgres, all, s.tableExists(ctx))
	if err != nil || script == "" {
		return "", err
	}
	found, err := s.schemaExists(ctx)
	if err != nil {
		return "", fmt.Errorf("look for schema %s: %w", s.cfg.Schema, err)
	}
	where, err := s.cfg.place(ctx, !found)
	return where + script, err
}

// wholeScript is PendingScript for an empty database, without a connection.
func (c Config) wholeScript(ctx context.Context, sets []store.MigrationSet) (string, error) {
	c = c.withDefaults()
	all, err := migrationSets(sets)
	if err != nil {
		return "", err
	}
	script, err := sqlcore.WholeScript(ctx, goose.DialectPostgres, all)
	if err != nil {
		return "", err
	}
	where, err := c.place(ctx, c.Schema != defaultSchema)
	return where + script, err
}

// place is what a script begins with, so that its tables are made where the store's connections look for them.
func (c Config) place(ctx context.Context, missing bool) (string, error) {
	cfg, err := c.connConfig(ctx, store.Options{})
	if err != nil {
		return "", err
	}
	var place strings.Builder
	if missing {
		fmt.Fprintf(&place, "CREATE SCHEMA IF NOT EXISTS %s;\n", pgx.Identifier{c.Schema}.Sanitize())
	}
	if path := cfg.RuntimeParams["search_path"]; path != "" {
		fmt.Fprintf(&place, "SELECT set_config('search_path', '%s', false);\n", strings.ReplaceAll(path, "'", "''"))
	} else {
		place.WriteString("-- The tables are made in the first schema of the role's search_path.\n")
	}
	return place.String(), nil
}

func migrationSets(sets []store.MigrationSet) ([]sqlcore.MigrationSet, error) {
	return sqlcore.MigrationSets(migrations, sets, "postgres")
}
