package sqlcore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// PendingScript returns the statements that MigrateUp would run, for a person to run with the database's own client; empty where nothing is missing. It changes
// nothing. tableExists tells whether a table is there.
func PendingScript(ctx context.Context, db *sql.DB, dialect goose.Dialect, sets []MigrationSet, tableExists func(table string) (bool, error)) (string, error) {
	return script(ctx, dialect, sets, func(set MigrationSet) ([]int64, bool, error) {
		return set.applied(ctx, db, tableExists)
	})
}

// WholeScript is PendingScript for an empty database, without any connection.
func WholeScript(ctx context.Context, dialect goose.Dialect, sets []MigrationSet) (string, error) {
	return script(ctx, dialect, sets, func(MigrationSet) ([]int64, bool, error) { return nil, false, nil })
}

// script lets goose migrate a database that writes down what it is told. So the versions, too, are kept as MigrateUp keeps them.
func script(ctx context.Context, dialect goose.Dialect, sets []MigrationSet, applied func(MigrationSet) ([]int64, bool, error)) (string, error) {
	var tape tape
	tape.delimited = dialect == goose.DialectMySQL
	db := sql.OpenDB(&tape)
	defer func() { _ = db.Close() }()
	for _, set := range sets {
		versions, found, err := applied(set)
		if err != nil {
			return "", fmt.Errorf("read the version of %s: %w", set.Name, err)
		}
		inner, err := database.NewStore(dialect, set.table())
		if err != nil {
			return "", fmt.Errorf("migrations of %s: %w", set.Name, err)
		}
		p, err := goose.NewProvider(goose.DialectCustom, db, set.Files, goose.WithStore(&versionStore{Store: inner, found: found, versions: versions}),
			goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
		if err != nil {
			return "", fmt.Errorf("migrations of %s: %w", set.Name, err)
		}
		for _, source := range p.ListSources() {
			if slices.Contains(versions, source.Version) {
				continue
			}
			tape.heading(set.Name + "/" + source.Path)
			if _, err := p.UpByOne(ctx); err != nil {
				return "", fmt.Errorf("migrations of %s: %w", set.Name, err)
			}
		}
	}
	return tape.text.String(), nil
}

// versionStore is goose's table of versions as it would be, where nothing can be asked.
type versionStore struct {
	database.Store
	found    bool
	versions []int64
}

var _ database.StoreExtender = (*versionStore)(nil)

// TableExists implements database.StoreExtender. A table without rows is one whose maker was killed: it gets its first row as a new one does.
func (s *versionStore) TableExists(context.Context, database.DBTxConn) (bool, error) {
	return s.found && len(s.versions) > 0, nil
}

// CreateVersionTable implements database.Store.
func (s *versionStore) CreateVersionTable(ctx context.Context, db database.DBTxConn) error {
	if s.found {
		return nil
	}
	return s.Store.CreateVersionTable(ctx, db)
}

// Insert implements database.Store, without placeholders.
func (s *versionStore) Insert(ctx context.Context, db database.DBTxConn, req database.InsertRequest) error {
	s.versions = append(s.versions, req.Version)
	_, err := db.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %s (version_id, is_applied) VALUES (%d, true)`, s.Tablename(), req.Version))
	return err
}

// GetMigration implements database.Store.
func (s *versionStore) GetMigration(_ context.Context, _ database.DBTxConn, version int64) (*database.GetMigrationResult, error) {
	if !slices.Contains(s.versions, version) {
		return nil, database.ErrVersionNotFound
	}
	return &database.GetMigrationResult{IsApplied: true}, nil
}

// GetLatestVersion implements database.Store.
func (s *versionStore) GetLatestVersion(context.Context, database.DBTxConn) (int64, error) {
	if len(s.versions) == 0 {
		return 0, database.ErrVersionNotFound
	}
	return slices.Max(s.versions), nil
}

// ListMigrations implements database.Store.
func (s *versionStore) ListMigrations(context.Context, database.DBTxConn) ([]*database.ListMigrationsResult, error) {
	var all []*database.ListMigrationsResult
	for _, version := range slices.Backward(s.versions) {
		all = append(all, &database.ListMigrationsResult{Version: version, IsApplied: true})
	}
	return all, nil
}

// tape is a database that keeps the text of the statements it is given, and knows nothing.
type tape struct {
	text      strings.Builder
	delimited bool // the client ends a statement at any semicolon, until it is told another mark
}

func (t *tape) heading(name string) { t.text.WriteString("\n-- " + name + "\n") }

var lineComment = regexp.MustCompile(`(?m)--.*$`)

func (t *tape) statement(text string) {
	text = strings.TrimSuffix(strings.TrimSpace(text), ";")
	if t.delimited && strings.Contains(lineComment.ReplaceAllString(text, ""), ";") {
		t.text.WriteString("DELIMITER //\n" + text + "\n//\nDELIMITER ;\n")
		return
	}
	t.text.WriteString(text + ";\n")
}

var errTape = errors.New("a script of migrations can only write")

// Connect implements driver.Connector.
func (t *tape) Connect(context.Context) (driver.Conn, error) { return tapeConn{t}, nil }

// Driver implements driver.Connector.
func (t *tape) Driver() driver.Driver { return t }

// Open implements driver.Driver.
func (t *tape) Open(string) (driver.Conn, error) { return tapeConn{t}, nil }

// tapeConn is a connection of the tape, and its transaction.
type tapeConn struct{ *tape }

// ExecContext implements driver.ExecerContext.
func (c tapeConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if len(args) > 0 {
		return nil, errTape
	}
	c.statement(query)
	return driver.RowsAffected(1), nil
}

// BeginTx implements driver.ConnBeginTx.
func (c tapeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	c.statement("BEGIN")
	return c, nil
}

// Begin implements driver.Conn.
func (c tapeConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// Commit implements driver.Tx.
func (c tapeConn) Commit() error {
	c.statement("COMMIT")
	return nil
}

// Rollback implements driver.Tx.
func (c tapeConn) Rollback() error { return errTape }

// Prepare implements driver.Conn.
func (c tapeConn) Prepare(string) (driver.Stmt, error) { return nil, errTape }

// Close implements driver.Conn.
func (c tapeConn) Close() error { return nil }
