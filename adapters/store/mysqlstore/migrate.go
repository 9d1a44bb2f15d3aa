package mysqlstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/adapters/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate implements store.Store. The connection that migrates is the one that holds the lock: the server gives the lock back when
// that connection ends, which is not before its last statement has ended, also where its process was killed.
func (s *Store) Migrate(ctx context.Context, sets []store.MigrationSet) error {
	all, err := migrationSets(sets)
	if err != nil {
		return err
	}
	cfg, err := s.connector.configure()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if s.cfg.Schema != "" {
		if _, err := s.db.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS `"+s.cfg.Schema+"`"); err != nil {
			return fmt.Errorf("migrate: create the database: %w", err)
		}
	}
	db := sql.OpenDB(&lockedConnector{connector: s.connector, lock: lockName(cfg.DBName)})
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	for _, set := range all {
		if err := mendVersions(ctx, db, set.Name); err != nil {
			return fmt.Errorf("migrate %s: %w", set.Name, err)
		}
	}
	return sqlcore.MigrateUp(ctx, db, goose.DialectMySQL, all, s.logger)
}

// lockName is of one database; the server knows such names up to 64 characters.
func lockName(database string) string {
	sum := sha256.Sum256([]byte(database))
	return "oncemill.migrate." + hex.EncodeToString(sum[:16])
}

// mendVersions adds the first row of a version table whose maker was killed before it did.
func mendVersions(ctx context.Context, db *sql.DB, set string) error {
	table := sqlcore.VersionTable(set)
	found, err := tableExists(ctx, db, table)
	if err != nil || !found {
		return err
	}
	_, err = db.ExecContext(ctx, `INSERT INTO `+table+` (version_id, is_applied) SELECT 0, true FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM `+table+`)`)
	return err
}

// lockedConnector opens connections that hold a lock of the server as long as they live.
type lockedConnector struct {
	*connector
	lock string
}

// Connect implements driver.Connector. It waits for the lock until ctx ends.
func (c *lockedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.wait(ctx, opened.(*conn)); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for other replicas: %w", err), opened.Close())
	}
	return opened, nil
}

// wait asks in steps: a server that ends an idle or a long statement does not fail the start.
func (c *lockedConnector) wait(ctx context.Context, opened *conn) error {
	for {
		got, err := opened.number(ctx, `SELECT GET_LOCK('`+c.lock+`', 5)`)
		if err != nil {
			return err
		}
		if got == 1 {
			return nil
		}
	}
}

// Pending implements store.Store.
func (s *Store) Pending(ctx context.Context, sets []store.MigrationSet) ([]string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return nil, err
	}
	return sqlcore.PendingMigrations(ctx, s.db.DB, goose.DialectMySQL, all, func(table string) (bool, error) {
		return tableExists(ctx, s.db.DB, table)
	})
}

// PendingScript implements store.Store.
func (s *Store) PendingScript(ctx context.Context, sets []store.MigrationSet) (string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return "", err
	}
	script, err := sqlcore.PendingScript(ctx, s.db.DB, goose.DialectMySQL, all, func(table string) (bool, error) {
		return tableExists(ctx, s.db.DB, table)
	})
	if err != nil || script == "" {
		return "", err
	}
	var database sql.NullString
	if err := s.db.GetContext(ctx, &database, `SELECT database()`); err != nil {
		return "", fmt.Errorf("look for the database: %w", err)
	}
	where, err := s.cfg.place(!database.Valid)
	return where + script, err
}

// wholeScript is PendingScript for an empty database, without a connection.
func (c Config) wholeScript(ctx context.Context, sets []store.MigrationSet) (string, error) {
	all, err := migrationSets(sets)
	if err != nil {
		return "", err
	}
	script, err := sqlcore.WholeScript(ctx, goose.DialectMySQL, all)
	if err != nil {
		return "", err
	}
	where, err := c.place(c.Schema != "")
	return where + script, err
}

// place is what a script begins with: the database where the store's connections look for the tables, and their settings.
func (c Config) place(missing bool) (string, error) {
	cfg, err := c.driverConfig(store.Options{})
	if err != nil {
		return "", err
	}
	name := "`" + strings.ReplaceAll(cfg.DBName, "`", "``") + "`"
	place := "SET NAMES utf8mb4;\nUSE " + name + ";\n" + sessionSettings + ";\n"
	if missing {
		place = "CREATE DATABASE IF NOT EXISTS " + name + ";\n" + place
	}
	return place, nil
}

func tableExists(ctx context.Context, db *sql.DB, table string) (bool, error) {
	var n int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = ?`, table).Scan(&n)
	return n > 0, err
}

func migrationSets(sets []store.MigrationSet) ([]sqlcore.MigrationSet, error) {
	return sqlcore.MigrationSets(migrations, sets, "mysql")
}
