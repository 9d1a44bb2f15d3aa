package mysqlstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

const secret = "s3cr3t-Zq!/?@:"

// TestF083PasswordIsNeverTold: in whatever way a connection string is wrong, the error names the server and never the password.
func TestF083PasswordIsNeverTold(t *testing.T) {
	t.Parallel()
	encoded, db := url.QueryEscape(secret), testenv.MySQL(t)
	file := filepath.Join(t.TempDir(), "dsn")
	require.NoError(t, os.WriteFile(file, []byte("u:"+secret+"@tcp(127.0.0.1:1)/db\n"), 0o600))
	for name, c := range map[string]mysqlstore.Config{
		"nobody listens":     {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/db"},
		"URL":                {DSN: "mysql://u:" + encoded + "@127.0.0.1:1/db"},
		"no such user":       {DSN: "nobody_here:" + secret + "@tcp(" + db.Addr + ")/db"},
		"no such user, URL":  {DSN: "mariadb://nobody_here:" + encoded + "@" + db.Addr + "/db"},
		"not encoded":        {DSN: "mysql://u:" + secret + "@127.0.0.1:1/db"},
		"no slash":           {DSN: "u:" + encoded + "@tcp(127.0.0.1:1)"},
		"open bracket":       {DSN: "u:" + secret + "@tcp(127.0.0.1:1/db"},
		"no such network":    {DSN: "u:" + secret + "@carrier-pigeon(127.0.0.1:1)/db"},
		"bad parameter":      {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/db?timeout=" + encoded},
		"unknown TLS":        {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/db?tls=" + encoded},
		"no database":        {DSN: "u:" + secret + "@tcp(127.0.0.1:1)/"},
		"in a file":          {DSNFile: file},
		"file and string":    {DSNFile: file, DSN: "u:" + secret + "@tcp(127.0.0.1:1)/db"},
		"PostgreSQL's":       {DSN: "postgres://u:" + encoded + "@127.0.0.1:1/db"},
		"database not there": {DSN: strings.Replace(db.DSN, "root@", "root:"+"@", 1) + "?x=" + encoded},
	} {
		var log bytes.Buffer
		_, err := mysqlstore.Open(t.Context(), c, store.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		require.Error(t, err, name)
		check := mysqlstore.Factory().Check(func(v any) error { *v.(*mysqlstore.Config) = c; return nil })
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%v", check), log.String()} {
			for _, form := range []string{secret, encoded, "s3cr3t"} {
				require.NotContains(t, text, form, name)
			}
		}
	}
	_, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: "u:p@tcp(127.0.0.1:1)/db"}, store.Options{})
	require.ErrorContains(t, err, "127.0.0.1:1", "but the server is named")
	require.ErrorContains(t, err, "check that the server runs")
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	err := mysqlstore.Config{DSN: "u@tcp(a)/b", DSNFile: "f", Schema: "x`; DROP", MaxOpen: -1, LockTimeout: -1}.Validate()
	for _, part := range []string{"dsn and dsn_file", "schema", "max_open", "lock_timeout"} {
		require.ErrorContains(t, err, part, "all problems at once")
	}
	require.ErrorContains(t, mysqlstore.Config{}.Validate(), "dsn is missing")
	require.ErrorContains(t, mysqlstore.Config{DSN: "u@tcp(a)/"}.Validate(), "names no database")
	require.NoError(t, mysqlstore.Config{DSN: "u@tcp(a)/", Schema: "x"}.Validate())
}

// TestURL: the other form of a connection string, with a password that has reserved characters.
func TestURL(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	user := w.db.Name
	run(t, s, `CREATE USER `+user+`@'%' IDENTIFIED BY '`+secret+`'`)
	t.Cleanup(func() {
		_, err := s.DB().Exec(`DROP USER ` + user + `@'%'`)
		require.NoError(t, err)
	})
	run(t, s, `GRANT ALL ON `+w.db.Name+`.* TO `+user+`@'%'`)
	far, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: "mysql://" + user + ":" + url.QueryEscape(secret) + "@" + w.db.Addr + "/" + w.db.Name + "?timeout=5s"}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, far.Close()) })
	require.Equal(t, keystore.Absent, peek(t, far, "a").State)
}

// TestRotatedPassword: the file of the connection string is read again for each new connection.
func TestRotatedPassword(t *testing.T) {
	t.Parallel()
	db := testenv.MySQL(t)
	file := filepath.Join(t.TempDir(), "dsn")
	write := func(variable string) {
		cfg, err := mysql.ParseDSN(db.DSN)
		require.NoError(t, err)
		cfg.Params = map[string]string{"@who": "'" + variable + "'"}
		require.NoError(t, os.WriteFile(file, []byte(cfg.FormatDSN()+"\n"), 0o600))
	}
	write("before")
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSNFile: file}, store.Options{ClientName: "oncemill, test"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	who := func() (name string) {
		require.NoError(t, s.DB().Get(&name, `SELECT @who`))
		return name
	}
	require.Equal(t, "before", who())
	write("after")
	require.Equal(t, "before", who(), "an open connection stays")
	s.DB().SetMaxIdleConns(0)
	require.Equal(t, "after", who())

	require.NoError(t, os.Remove(file))
	_, err = s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestSchema: a database that is missing is made, and all tables are in it.
func TestSchema(t *testing.T) {
	t.Parallel()
	db := testenv.MySQL(t)
	schema := db.Name + "_x"
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: db.DSN, Schema: schema}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := s.DB().Exec(`DROP DATABASE ` + schema)
		require.NoError(t, err)
		require.NoError(t, s.Close())
	})
	pending, err := s.Pending(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, pending, 3)
	require.NoError(t, s.Migrate(t.Context(), []store.MigrationSet{slowSet()}))
	var tables int
	require.NoError(t, s.DB().Get(&tables, `SELECT count(*) FROM information_schema.tables WHERE table_schema = ?`, schema))
	require.Equal(t, 11, tables, "8 of the store, 1 of the plugin, 2 of versions")
	require.Equal(t, keystore.Absent, peek(t, s, "a").State)

	_, err = mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: strings.Replace(db.DSN, db.Name, "none_of_this_name", 1)}, store.Options{})
	require.ErrorContains(t, err, "none_of_this_name", "one that the connection string names must be there")
}
