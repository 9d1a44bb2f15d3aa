package sqlcore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/pressly/goose/v3"

	"github.com/oncemill/oncemill/adapters/store"
)

// MigrationSet is one set of goose files with a version table of its own.
type MigrationSet struct {
	Name  string
	Files fs.FS
}

// MigrationSets are the store's own migrations, of the folder "migrations" in own, and then those of plugins, each from its folder for the dialect. A
// plugin without one is store.ErrDialect.
func MigrationSets(own fs.FS, plugins []store.MigrationSet, dialect string) ([]MigrationSet, error) {
	files, err := fs.Sub(own, "migrations")
	if err != nil {
		return nil, err
	}
	all := []MigrationSet{{Name: "store", Files: files}}
	for _, set := range plugins {
		files, ok := folder(set.Files, dialect)
		if !ok {
			return nil, fmt.Errorf("migrations of %s: no folder %q: %w", set.Name, dialect, store.ErrDialect)
		}
		all = append(all, MigrationSet{Name: set.Name, Files: files})
	}
	return all, nil
}

// folder is the part of files for a dialect; false where there is none.
func folder(files fs.FS, dialect string) (fs.FS, bool) {
	if files == nil {
		return nil, false
	}
	if info, err := fs.Stat(files, dialect); err != nil || !info.IsDir() {
		return nil, false
	}
	sub, err := fs.Sub(files, dialect)
	return sub, err == nil
}

func (m MigrationSet) table() string { return VersionTable(m.Name) }

// VersionTable is the table with the versions of a set.
func VersionTable(set string) string { return "oncemill_version_" + set }

func (m MigrationSet) provider(db *sql.DB, dialect goose.Dialect, logger *slog.Logger) (*goose.Provider, error) {
	p, err := goose.NewProvider(dialect, db, m.Files,
		goose.WithTableName(m.table()), goose.WithDisableGlobalRegistry(true), goose.WithSlog(logger))
	if err != nil {
		return nil, fmt.Errorf("migrations of %s: %w", m.Name, err)
	}
	return p, nil
}

// MigrateUp brings each set up to date, in order. The caller holds the lock that keeps other replicas out.
func MigrateUp(ctx context.Context, db *sql.DB, dialect goose.Dialect, sets []MigrationSet, logger *slog.Logger) error {
	for _, set := range sets {
		p, err := set.provider(db, dialect, logger)
		if err != nil {
			return err
		}
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrate %s: %w", set.Name, err)
		}
	}
	return nil
}

// PendingMigrations lists what MigrateUp would apply. It changes nothing and needs no right to.
// tableExists tells whether a table is there.
func PendingMigrations(ctx context.Context, db *sql.DB, dialect goose.Dialect, sets []MigrationSet, tableExists func(table string) (bool, error)) ([]string, error) {
	var pending []string
	for _, set := range sets {
		p, err := set.provider(db, dialect, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		applied, _, err := set.applied(ctx, db, tableExists)
		if err != nil {
			return nil, fmt.Errorf("read the version of %s: %w", set.Name, err)
		}
		for _, source := range p.ListSources() {
			if !slices.Contains(applied, source.Version) {
				pending = append(pending, fmt.Sprintf("%s/%s", set.Name, source.Path))
			}
		}
	}
	return pending, nil
}

// applied lists the versions that the database has, and whether it has a table of them.
func (m MigrationSet) applied(ctx context.Context, db *sql.DB, tableExists func(string) (bool, error)) (versions []int64, exists bool, err error) {
	exists, err = tableExists(m.table())
	if err != nil || !exists {
		return nil, false, err
	}
	rows, err := db.QueryContext(ctx, `SELECT version_id FROM `+m.table())
	if err != nil {
		return nil, true, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, true, err
		}
		versions = append(versions, v)
	}
	return versions, true, rows.Err()
}
