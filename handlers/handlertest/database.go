package handlertest

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
)

// database is where a kit has its tables. Its clock is moved by the kit.
type database interface {
	// open connects, as one replica does.
	open(ctx context.Context, replica string, log *slog.Logger) (store.Store, error)
	// copy makes one for t with the same content and the same time; db is a handle of this one.
	copy(t testing.TB, db *sqlx.DB) database
	// now is its clock.
	now() time.Time
	// advance moves the clock forward.
	advance(ctx context.Context, d time.Duration) error
	// cut breaks the connections of a replica, and returns the error of who uses one, where that would not notice by itself.
	cut(ctx context.Context, replica string) error
	// address says where it is, to a process that opens it with at.
	address() address
	at(a address) database
	// tables is a query for the names of all tables, as they are quoted in a query.
	tables() string
}

// address is where a database is, and what it has of its clock in the process.
type address struct {
	Place  string
	Family string `json:",omitempty"` // what the names of the test's databases on a server begin with
	Ahead  time.Duration
}

// sqliteFile is a database in a file.
type sqliteFile struct {
	path  string
	ahead *atomic.Int64 // of the machine's clock
}

func newFile(t testing.TB) database {
	return &sqliteFile{path: filepath.Join(t.TempDir(), "test.db"), ahead: &atomic.Int64{}}
}

func (f *sqliteFile) open(ctx context.Context, replica string, log *slog.Logger) (store.Store, error) {
	return sqlitestore.Open(ctx, sqlitestore.Config{Path: f.path, Now: f.now}, store.Options{Logger: log, ClientName: replica})
}

func (f *sqliteFile) copy(t testing.TB, db *sqlx.DB) database {
	t.Helper()
	c := newFile(t).(*sqliteFile)
	c.ahead.Store(f.ahead.Load())
	if _, err := db.ExecContext(t.Context(), `VACUUM INTO ?`, c.path); err != nil {
		t.Fatalf("handlertest: copying the database: %v", err)
	}
	return c
}

func (f *sqliteFile) now() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) }

func (f *sqliteFile) advance(_ context.Context, d time.Duration) error {
	f.ahead.Add(int64(d))
	return nil
}

// cut has no connection to break: the step gets the driver's word for it.
func (f *sqliteFile) cut(context.Context, string) error { return errCut }

func (f *sqliteFile) address() address {
	return address{Place: f.path, Ahead: time.Duration(f.ahead.Load())}
}

func (f *sqliteFile) at(a address) database {
	there := &sqliteFile{path: a.Place, ahead: &atomic.Int64{}}
	there.ahead.Store(int64(a.Ahead))
	return there
}

func (f *sqliteFile) tables() string {
	return `SELECT '"' || name || '"' FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`
}
