package app

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// emptyDatabase is a database that a person reaches without Oncemill.
type emptyDatabase struct {
	settings []string                          // of the environment
	apply    func(t *testing.T, script string) // as a person does, with the database's own client
	dump     func(t *testing.T) string         // all that is in it, but for times and names that are random
}

// TestPrintedMigrations: what "migrate print" printed leaves the very state that "migrate up" leaves, whether it is applied to an empty database or to
// one where a part is there, and a run that may not migrate is content with it.
func TestPrintedMigrations(t *testing.T) {
	t.Parallel()
	for name, empty := range map[string]func(t *testing.T) emptyDatabase{"sqlite": emptySQLite, "postgres": emptyPostgres, "mysql": emptyMySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prepared, whole, rest := empty(t), empty(t), empty(t)
			newConsole(t, Builtin(), prepared.settings...).ok("migrate", "up")
			want := prepared.dump(t)
			require.Contains(t, want, "oncemill_version_journal")

			c := newConsole(t, Builtin(), append(whole.settings, "MIGRATE=verify")...)
			c.fails(ExitFailed, "run")
			script := c.ok("migrate", "print", "--all")
			require.Equal(t, script, c.ok("migrate", "print"))
			whole.apply(t, script)
			require.Equal(t, want, whole.dump(t))
			require.Equal(t, "-- nothing is missing\n", c.ok("migrate", "print"))
			code, _ := c.start().end()
			require.Equal(t, ExitOK, code)

			first := Builtin()
			first.Plugins = first.Plugins[:1]
			newConsole(t, first, rest.settings...).ok("migrate", "up")
			c = newConsole(t, Builtin(), rest.settings...)
			script = c.ok("migrate", "print")
			require.NotContains(t, script, "store/00001_init.sql")
			rest.apply(t, script)
			require.Equal(t, want, rest.dump(t))
		})
	}
}

// TestPrintedMigrationsOfOneSet: of a set, only the versions that are missing.
func TestPrintedMigrationsOfOneSet(t *testing.T) {
	t.Parallel()
	c := newConsole(t, grown(1).set())
	c.ok("migrate", "up")
	c.set = grown(3).set()
	require.Equal(t, `
-- tally/00002_more.sql
BEGIN;
ALTER TABLE tally ADD COLUMN more_2 TEXT;
INSERT INTO oncemill_version_tally (version_id, is_applied) VALUES (2, true);
COMMIT;

-- tally/00003_more.sql
BEGIN;
ALTER TABLE tally ADD COLUMN more_3 TEXT;
INSERT INTO oncemill_version_tally (version_id, is_applied) VALUES (3, true);
COMMIT;
`, c.ok("migrate", "print"))
}

// TestPrintAllConnectsToNothing: the servers are not there, and SQLite's file is not made.
func TestPrintAllConnectsToNothing(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{
		{"DATABASE=sqlite"},
		{"DATABASE=postgres", "DATABASES__POSTGRES__DSN=postgres://nobody@127.0.0.1:1/nothing", "DATABASES__POSTGRES__SCHEMA=shop"},
		{"DATABASE=mysql", "DATABASES__MYSQL__DSN=nobody@tcp(127.0.0.1:1)/nothing", "DATABASES__MYSQL__SCHEMA=shop"},
	} {
		c := newConsole(t, Builtin(), settings...)
		script := c.ok("migrate", "print", "--all")
		require.Contains(t, script, "-- store/00001_init.sql")
		require.Contains(t, script, "-- journal/00001_init.sql")
		if len(settings) > 1 {
			require.Contains(t, script, "IF NOT EXISTS")
			require.Contains(t, script, "shop")
		}
		entries, err := os.ReadDir(c.dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

// TestPrintedTriggersForMySQL: MySQL's client ends a statement at a semicolon inside of it, unless it is told another mark.
func TestPrintedTriggersForMySQL(t *testing.T) {
	t.Parallel()
	db := emptyMySQL(t)
	l := &tally{}
	set := l.set()
	set.Plugins[0].Migrations = fstest.MapFS{"mysql/00001_init.sql": {Data: []byte(`-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE tally (n int); -- nothing; to see
-- +goose StatementBegin
CREATE TRIGGER tally_two BEFORE INSERT ON tally FOR EACH ROW BEGIN SET NEW.n = NEW.n + 1; SET NEW.n = NEW.n * 2; END;
-- +goose StatementEnd
INSERT INTO tally VALUES (1);
`)}}
	c := newConsole(t, set, db.settings...)
	db.apply(t, c.ok("migrate", "print", "--all"))
	require.Contains(t, db.dump(t), "INSERT INTO `tally` VALUES (4)")
	require.Contains(t, c.ok("migrate", "status"), "0 migrations are missing")
}

// grown is the tally whose tables have had n versions.
func grown(n int) *grownTally { return &grownTally{n: n} }

type grownTally struct {
	tally
	n int
}

func (g *grownTally) set() Set {
	s := g.tally.set()
	files := fstest.MapFS{}
	for _, dialect := range []string{"sqlite", "postgres", "mysql"} {
		files[dialect+"/00001_init.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE tally (idempotency_key TEXT NOT NULL);\n")}
		for i := 2; i <= g.n; i++ {
			files[dialect+"/0000"+itoa(int64(i))+"_more.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE tally ADD COLUMN more_" + itoa(int64(i)) + " TEXT;\n")}
		}
	}
	p := s.Plugins[0]
	p.Migrations = files
	s.Plugins = []handlers.Plugin{p}
	return s
}

func emptySQLite(t *testing.T) emptyDatabase {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return emptyDatabase{
		settings: []string{"DATABASES__SQLITE__PATH=" + path},
		apply: func(t *testing.T, script string) {
			t.Helper()
			_, err := db.ExecContext(t.Context(), script)
			require.NoError(t, err)
		},
		dump: func(t *testing.T) string { return sqliteDump(t, db) },
	}
}

// sqliteDump lists what was made, and the versions.
func sqliteDump(t *testing.T, db *sql.DB) string {
	t.Helper()
	made := texts(t, db, `SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name`)
	for _, table := range texts(t, db, `SELECT name FROM sqlite_master WHERE name LIKE 'oncemill_version_%' ORDER BY name`) {
		made = append(made, texts(t, db, `SELECT '`+table+` ' || id || ' ' || version_id || ' ' || is_applied || ' ' || typeof(is_applied) FROM `+table+` ORDER BY id`)...)
	}
	return strings.Join(made, "\n")
}

func texts(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var all []string
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		all = append(all, text)
	}
	require.NoError(t, rows.Err())
	return all
}

// emptyPostgres is a schema that is yet to be made, named by the setting alone.
func emptyPostgres(t *testing.T) emptyDatabase {
	t.Helper()
	owner := testenv.Postgres(t)
	u, err := url.Parse(owner.DSN)
	require.NoError(t, err)
	u.RawQuery = url.Values{"sslmode": {"disable"}}.Encode()
	dsn, schema := u.String(), owner.Schema+"_X"
	psql, dump := testenv.Program(t, "postgres", "psql"), testenv.Program(t, "postgres", "pg_dump")
	t.Cleanup(func() {
		tool(t, `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`, psql, "-X", "-q", dsn)
	})
	return emptyDatabase{
		settings: []string{"DATABASE=postgres", "DATABASES__POSTGRES__DSN=" + dsn, "DATABASES__POSTGRES__SCHEMA=" + schema},
		apply:    func(t *testing.T, script string) { tool(t, script, psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", dsn) },
		dump: func(t *testing.T) string {
			return timeless(tool(t, "", dump, "--inserts", "--schema=\""+schema+"\"", dsn), schema)
		},
	}
}

func emptyMySQL(t *testing.T) emptyDatabase {
	t.Helper()
	db := testenv.MySQL(t)
	client, dump := testenv.Program(t, "mariadb", "mariadb"), testenv.Program(t, "mariadb", "mariadb-dump")
	cfg, err := mysql.ParseDSN(db.DSN)
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(cfg.Addr)
	require.NoError(t, err)
	access := []string{"--no-defaults", "--host=" + host, "--port=" + port, "--user=" + cfg.User, "--password=" + cfg.Passwd}
	return emptyDatabase{
		settings: []string{"DATABASE=mysql", "DATABASES__MYSQL__DSN=" + db.DSN},
		apply:    func(t *testing.T, script string) { tool(t, script, client, access...) },
		dump: func(t *testing.T) string {
			return timeless(tool(t, "", dump, append(access, "--skip-comments", "--skip-extended-insert", db.Name)...), db.Name)
		},
	}
}

// tool runs a client with the input, and returns what it printed.
func tool(t *testing.T, input, program string, arguments ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Stdin = strings.NewReader(input)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s: %s", program, &errs)
	return out.String()
}

// changing are the parts of a dump that no two have in common: times, and a word that guards pg_dump's script.
var changing = regexp.MustCompile(`(?m)'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.\d]*'|^\\(un)?restrict .*$`)

func timeless(dump, name string) string {
	return changing.ReplaceAllString(strings.ReplaceAll(dump, name, "NAME"), "")
}
