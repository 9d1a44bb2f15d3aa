package sqlbroker_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// database is a fresh database of one kind of server, postgres or mysql, that belongs to one test.
type database struct {
	kind   string
	dsn    string
	schema string
}

// onEach runs test on every kind of server.
func onEach(t *testing.T, test func(t *testing.T, db database)) {
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) { test(t, newDatabase(t, kind)) })
	}
}

func newDatabase(t testing.TB, kind string) database {
	t.Helper()
	if kind == "mysql" {
		db := testenv.MySQL(t)
		return database{kind: kind, dsn: db.DSN, schema: db.Name}
	}
	db := testenv.Postgres(t)
	return database{kind: kind, dsn: db.DSN, schema: db.Schema}
}

// private is a server that the test may stop.
func private(t *testing.T, kind string) (*testenv.Server, database) {
	t.Helper()
	if kind == "mysql" {
		server := testenv.Private(t, "mariadb")
		return server, database{kind: kind, dsn: server.Address}
	}
	server := testenv.Private(t, "postgres")
	return server, database{kind: kind, dsn: server.Address, schema: "public"}
}

// throughProxy is db behind a proxy.
func throughProxy(t testing.TB, db database) (database, *testenv.TCPProxy) {
	t.Helper()
	if db.kind == "mysql" {
		cfg, err := mysql.ParseDSN(db.dsn)
		require.NoError(t, err)
		proxy := testenv.Proxy(t, cfg.Addr)
		cfg.Addr = proxy.Addr
		db.dsn = cfg.FormatDSN()
		return db, proxy
	}
	u, err := url.Parse(db.dsn)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	db.dsn = u.String()
	return db, proxy
}

// plain is a connection without the adapter.
func plain(t testing.TB, db database) *sql.DB {
	t.Helper()
	conn, err := openPlain(db)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// openPlain opens a pool that quotes names as standard SQL does.
func openPlain(db database) (*sql.DB, error) {
	if db.kind != "mysql" {
		return sql.Open("pgx", db.dsn)
	}
	cfg, err := mysql.ParseDSN(db.dsn)
	if err != nil {
		return nil, err
	}
	cfg.Params = map[string]string{"sql_mode": "'ANSI_QUOTES,STRICT_ALL_TABLES'"}
	cfg.Logger = &mysql.NopLogger{}
	return sql.Open("mysql", cfg.FormatDSN())
}

// bind spells the placeholders of PostgreSQL, which stand in their order, as the server does.
func (db database) bind(query string) string {
	for n := 1; db.kind == "mysql" && n < 10; n++ {
		query = strings.ReplaceAll(query, fmt.Sprintf("$%d", n), "?")
	}
	return query
}

// insert writes a row into a topic's table as a program would that knows nothing of Watermill.
func (db database) insert(topic string) string {
	if db.kind == "mysql" {
		return `INSERT INTO "watermill_` + topic + `" (uuid, payload, metadata) VALUES (?, ?, ?)`
	}
	return `INSERT INTO "watermill_` + topic + `" (uuid, payload, metadata, transaction_id) VALUES ($1, $2, $3, pg_current_xact_id())`
}

// stockSchema is watermill-sql's default schema with payloads of any kind.
func (db database) stockSchema() wsql.SchemaAdapter {
	if db.kind == "mysql" {
		return wsql.DefaultMySQLSchema{GeneratePayloadType: func(string) string { return "LONGBLOB" }}
	}
	return wsql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
}

// jsonSchema is watermill-sql's default schema.
func (db database) jsonSchema() wsql.SchemaAdapter {
	if db.kind == "mysql" {
		return wsql.DefaultMySQLSchema{}
	}
	return wsql.DefaultPostgreSQLSchema{}
}

func (db database) stockOffsets() wsql.OffsetsAdapter {
	if db.kind == "mysql" {
		return wsql.DefaultMySQLOffsetsAdapter{}
	}
	return wsql.DefaultPostgreSQLOffsetsAdapter{}
}

// disable takes the triggers of the topic's table out of service.
func (db database) disable(t testing.TB, conn *sql.DB, topic string) {
	t.Helper()
	if db.kind == "postgres" {
		execute(t, conn, `ALTER TABLE "watermill_`+topic+`" DISABLE TRIGGER ALL`)
		return
	}
	var name string
	require.NoError(t, conn.QueryRowContext(t.Context(), `SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = DATABASE()`).Scan(&name))
	execute(t, conn, `DROP TRIGGER `+name)
}

// soon is a time of the server that leaves a moment for something before it.
func (db database) soon() string {
	if db.kind == "mysql" {
		return `UTC_TIMESTAMP(6) + INTERVAL 4 SECOND`
	}
	return `clock_timestamp() + interval '4 seconds'`
}

// holdClaims makes claims wait where the server will carry them out although nobody hears its answer. waiting fails while none waits.
func (db database) holdClaims(t testing.TB, conn *sql.DB) (waiting func() error, release func()) {
	t.Helper()
	const postgres = `SELECT count(*) FROM pg_stat_activity WHERE application_name = current_schema() AND wait_event_type = 'Lock' AND query LIKE 'WITH me %'`
	const mariadb = `SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info = 'COMMIT'`
	query := postgres
	if db.kind == "postgres" {
		tx := begin(t, conn, sql.LevelDefault)
		_, err := tx.Exec(`SELECT 1 FROM oncemill_sql_consumers FOR UPDATE`)
		require.NoError(t, err)
		release = func() { require.NoError(t, tx.Commit()) }
	} else {
		query = mariadb
		c, err := conn.Conn(context.Background())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		for _, stage := range []string{"START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT"} {
			_, err := c.ExecContext(t.Context(), `BACKUP STAGE `+stage)
			require.NoError(t, err)
		}
		release = func() {
			_, err := c.ExecContext(context.Background(), `BACKUP STAGE END`)
			require.NoError(t, err)
		}
	}
	return func() error {
		if count(t, conn, query) == 0 {
			return fmt.Errorf("no claim waits")
		}
		return nil
	}, release
}
