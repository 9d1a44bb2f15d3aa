package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

func TestEveryConnectionIsDurable(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	tx, err := s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	for name, q := range map[string]interface {
		GetContext(ctx context.Context, dest any, query string, args ...any) error
	}{"writer": tx.SQL(), "reader": s.DB()} {
		var mode string
		var synchronous, foreignKeys int
		require.NoError(t, q.GetContext(t.Context(), &mode, `PRAGMA journal_mode`))
		require.NoError(t, q.GetContext(t.Context(), &synchronous, `PRAGMA synchronous`))
		require.NoError(t, q.GetContext(t.Context(), &foreignKeys, `PRAGMA foreign_keys`))
		require.Equal(t, "wal", mode, name)
		require.Equal(t, 2, synchronous, "%s: FULL is 2", name)
		require.Equal(t, 1, foreignKeys, name)
	}
	caps := s.Keys().Capabilities()
	require.True(t, caps.Durable)
	require.Equal(t, 1, caps.Writers)
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "a b?c#d%41")
	s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{}, store.Options{DataDir: dir})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context(), nil))
	require.NoError(t, s.Ping(t.Context()))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s has mode %s", f.Name(), info.Mode())
		names[f.Name()] = true
	}
	require.True(t, names["oncemill.db"], "%v", names)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "twice")
	require.Error(t, s.Ping(t.Context()))
	_, err = s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.Error(t, err)
}

func TestPathThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("this is no database, but a text that is long enough to be read as a header of one hundred bytes ........"), 0o600))
	_, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: file}, store.Options{})
	require.ErrorContains(t, err, file)
	_, err = sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(file, "below")}, store.Options{})
	require.ErrorContains(t, err, file)
}

// foreign is a writer that knows nothing of turns.
func foreign(t *testing.T, path string) *sql.DB {
	t.Helper()
	connector, err := sqlite.NewConnector("file:" + path + "?_txlock=immediate")
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestClassifyRealErrors(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	classify := s.Keys().Classify
	other := foreign(t, w.path)

	held, err := other.Begin()
	require.NoError(t, err)
	_, err = s.DB().ExecContext(t.Context(), `PRAGMA busy_timeout = 10`)
	require.NoError(t, err)
	_, err = other.Exec(`INSERT INTO outbox_relays VALUES ('x', '')`)
	require.Error(t, err, "another connection of the same pool meets the lock")
	require.Equal(t, keystore.FaultContention, classify(err), "%v", err)
	require.NoError(t, held.Rollback())

	_, err = other.Exec(`CREATE TABLE full (b BLOB)`)
	require.NoError(t, err)
	conn, err := other.Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), `PRAGMA max_page_count = 1`) // SQLite takes the present size
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), `INSERT INTO full VALUES (zeroblob(1000000))`)
	require.Error(t, err)
	require.Equal(t, keystore.FaultUnavailable, classify(err), "a full disk: %v", err)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.DB().ExecContext(ctx, `DELETE FROM outbox`)
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, classify(err), "the caller's own end: %v", err)
	require.Equal(t, keystore.FaultOther, classify(errors.New("x")))
	require.Equal(t, keystore.FaultOther, classify(nil))
}

// TestTransactionsOfOthersTakeTheirTurn: code outside of the store begins on DB, and queues as the store does.
func TestTransactionsOfOthersTakeTheirTurn(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	tx, err := s.DB().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), tx, []outbox.Record{{Topic: "t", UUID: "u1", Key: "k1"}}))
	require.Error(t, s.Publish(t.Context(), "no transaction", nil))

	second := w.open(t)
	_, err = second.Keys().Begin(t.Context(), keystore.TxOptions{LockTimeout: 100 * time.Millisecond})
	require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
	read, err := second.DB().BeginTxx(t.Context(), &sql.TxOptions{ReadOnly: true})
	require.NoError(t, err, "who only reads does not queue")
	var n int
	require.NoError(t, read.Get(&n, `SELECT count(*) FROM outbox`))
	require.Zero(t, n)
	require.NoError(t, read.Rollback())

	require.NoError(t, tx.Commit())
	records, err := second.Outbox().List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Len(t, records, 1)
	later, err := second.Keys().Begin(t.Context(), keystore.TxOptions{LockTimeout: time.Second})
	require.NoError(t, err)
	require.NoError(t, later.Rollback())
}

func TestMigrationsOfPlugins(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	plugin := store.MigrationSet{Name: "risk", Files: fstest.MapFS{"sqlite/00001_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE risk_seen (id TEXT PRIMARY KEY);\n")}}}
	pending, err := s.Pending(t.Context(), []store.MigrationSet{plugin})
	require.NoError(t, err)
	require.Equal(t, []string{"risk/00001_init.sql"}, pending)
	require.NoError(t, s.Migrate(t.Context(), []store.MigrationSet{plugin}))
	pending, err = s.Pending(t.Context(), []store.MigrationSet{plugin})
	require.NoError(t, err)
	require.Empty(t, pending)

	none := store.MigrationSet{Name: "other", Files: fstest.MapFS{"postgres/00001_init.sql": {}}}
	require.ErrorIs(t, s.Migrate(t.Context(), []store.MigrationSet{none}), store.ErrDialect)
	_, err = s.Pending(t.Context(), []store.MigrationSet{none})
	require.ErrorIs(t, err, store.ErrDialect)
}
