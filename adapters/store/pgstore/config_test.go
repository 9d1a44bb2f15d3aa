package pgstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const secret = "s3cr3t-Zq!/?@:"

// TestF083PasswordIsNeverTold: in whatever way a connection string is wrong, the error names the server and never the password.
func TestF083PasswordIsNeverTold(t *testing.T) {
	t.Parallel()
	encoded := url.QueryEscape(secret)
	server, err := url.Parse(testenv.Postgres(t).DSN)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("postgres://u:"+encoded+"@127.0.0.1:1/db?sslmode=disable\n"), 0o600))
	for name, c := range map[string]pgstore.Config{
		"nobody listens":     {DSN: "postgres://u:" + encoded + "@127.0.0.1:1/db?sslmode=disable"},
		"words":              {DSN: "host=127.0.0.1 port=1 user=u password=" + encoded},
		"no such role":       {DSN: "postgres://nobody_here:" + encoded + "@" + server.Host + "/none?sslmode=disable"},
		"not encoded":        {DSN: "postgres://u:" + secret + "@127.0.0.1:1/db"},
		"port is no number":  {DSN: "postgres://u:" + encoded + "@127.0.0.1:port/db"},
		"unknown sslmode":    {DSN: "postgres://u:" + encoded + "@127.0.0.1:1/db?sslmode=perhaps"},
		"open quote":         {DSN: "host=127.0.0.1 password='" + secret},
		"password parameter": {DSN: "postgres://127.0.0.1:1/db?sslmode=bad&password=" + encoded},
		"in a file":          {DSNFile: file},
		"file and string":    {DSNFile: file, DSN: "postgres://u:" + encoded + "@127.0.0.1:1/db"},
	} {
		var log bytes.Buffer
		_, err := pgstore.Open(t.Context(), c, store.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		require.Error(t, err, name)
		check := pgstore.Factory().Check(func(v any) error { *v.(*pgstore.Config) = c; return nil })
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%v", check), log.String()} {
			for _, form := range []string{secret, encoded, "s3cr3t"} {
				require.NotContains(t, text, form, name)
			}
		}
	}
	_, err = pgstore.Open(t.Context(), pgstore.Config{DSN: "postgres://u:p@127.0.0.1:1/db?sslmode=disable"}, store.Options{})
	require.ErrorContains(t, err, "127.0.0.1:1", "but the server is named")
	require.ErrorContains(t, err, "check that the server runs")
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	err := pgstore.Config{DSN: "postgres://a/b", DSNFile: "f", Schema: `x"; DROP`, MaxOpen: -1, LockTimeout: -1}.Validate()
	for _, part := range []string{"dsn and dsn_file", "schema", "max_open", "lock_timeout"} {
		require.ErrorContains(t, err, part, "all problems at once")
	}
	require.NoError(t, pgstore.Config{}.Validate())
}

// TestRotatedPassword: the file of the connection string is read again for each new connection.
func TestRotatedPassword(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	file := filepath.Join(t.TempDir(), "dsn")
	write := func(application string) {
		u, err := url.Parse(db.DSN)
		require.NoError(t, err)
		q := u.Query()
		q.Set("application_name", application)
		u.RawQuery = q.Encode()
		require.NoError(t, os.WriteFile(file, []byte(u.String()+"\n"), 0o600))
	}
	write("before")
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSNFile: file}, store.Options{ClientName: "unused"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Equal(t, "before", application(t, s))

	write("after")
	require.Equal(t, "before", application(t, s), "an open connection stays")
	s.DB().SetMaxIdleConns(0)
	require.Equal(t, "after", application(t, s))

	require.NoError(t, os.Remove(file))
	_, err = s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func application(t *testing.T, s *pgstore.Store) string {
	t.Helper()
	var name string
	require.NoError(t, s.DB().Get(&name, `SHOW application_name`))
	return name
}

// TestSchema: the schema is made, and all tables are in it.
func TestSchema(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	u, err := url.Parse(db.DSN)
	require.NoError(t, err)
	q := u.Query()
	q.Del("search_path")
	u.RawQuery = q.Encode()
	dsn, schema := u.String(), db.Schema+"_x"
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: dsn, Schema: schema}, store.Options{ClientName: db.Schema})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := s.DB().Exec(`DROP SCHEMA ` + schema + ` CASCADE`)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	pending, err := s.Pending(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, pending, 3)
	require.NoError(t, s.Migrate(t.Context(), []store.MigrationSet{slowSet()}))
	var tables int
	require.NoError(t, s.DB().Get(&tables, `SELECT count(*) FROM pg_tables WHERE schemaname = $1`, schema))
	require.Equal(t, 11, tables, "8 of the store, 1 of the plugin, 2 of versions")
	require.Equal(t, keystore.Absent, peek(t, s, "a").State)
}

// TestRoleThatCannotChangeTables: what another role migrated is seen as complete, and works, with the rights on rows alone.
func TestRoleThatCannotChangeTables(t *testing.T) {
	t.Parallel()
	w, owner := newWorld(t)
	role := w.db.Schema
	run(t, owner, `CREATE ROLE `+role+` LOGIN; GRANT USAGE ON SCHEMA `+role+` TO `+role+`;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA `+role+` TO `+role+`; GRANT USAGE ON ALL SEQUENCES IN SCHEMA `+role+` TO `+role)
	t.Cleanup(func() {
		_, err := owner.DB().Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role)
		require.NoError(t, err)
	})
	u, err := url.Parse(w.db.DSN)
	require.NoError(t, err)
	u.User = url.User(role)
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: u.String()}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	pending, err := s.Pending(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, pending)
	_, err = s.DB().Exec(`CREATE TABLE ` + role + `.mine (n int)`)
	require.ErrorContains(t, err, "permission denied")
	worksOn(t, s)
}

// TestPgBouncerWithoutNamedStatements is what the connection string says for a PgBouncer before 1.21.
func TestPgBouncerWithoutNamedStatements(t *testing.T) {
	t.Parallel()
	_, s := world{pooled: true, unnamed: true}.fresh(t)
	worksOn(t, s)
}

// worksOn handles a message and looks for its key and for what it published.
func worksOn(t *testing.T, s *pgstore.Store) {
	t.Helper()
	tx := begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
	done := completed("a")
	done[0].Outbox = []outbox.Record{{Topic: "t", UUID: "a", Key: "a"}}
	require.NoError(t, tx.Commit(t.Context(), done))
	require.Equal(t, keystore.Completed, peek(t, s, "a").State)
	records, err := s.Outbox().List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Len(t, records, 1)
}

func peek(t *testing.T, s *pgstore.Store, key string) keystore.Record {
	t.Helper()
	records, err := s.Keys().Peek(t.Context(), []keystore.ID{{Scope: "s", Key: key}})
	require.NoError(t, err)
	return records[0]
}
