package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// Database is a PostgreSQL schema that belongs to one test.
type Database struct {
	// DSN is a URL with a query, whose search_path is the schema alone, for pgx and for
	// sql.Open("pgx", ...). Its user may do everything on the server.
	DSN string
	// Schema is the schema's name, which needs no quotes.
	Schema string
}

// Postgres returns a fresh, empty schema, or skips the test. At the end of the
// test the sessions that are still open on it are ended and it is dropped.
func Postgres(t testing.TB) Database {
	t.Helper()
	server := lookup(t, "postgres")[0]
	schema := "test_" + strings.ToLower(rand.Text()[:16])
	dsn, err := withSchema(server, schema)
	if err != nil {
		t.Fatalf("testenv: ONCEMILL_TEST_POSTGRES: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := execute(ctx, server, "CREATE SCHEMA "+schema); err != nil {
		t.Fatalf("testenv: create schema: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := dropSchema(ctx, server, schema); err != nil {
			t.Errorf("testenv: drop schema %s: %v", schema, err)
		}
	})
	return Database{DSN: dsn, Schema: schema}
}

// PgBouncer returns a fresh, empty schema, like [Postgres], that is reached through a PgBouncer in transaction mode. A pooler hands
// on no settings of a session: the schema is the search_path of a role of the test's own, which has its name.
func PgBouncer(t testing.TB) Database {
	t.Helper()
	pooler := lookup(t, "pgbouncer")[0]
	server := lookup(t, "postgres")[0]
	db := Postgres(t)
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("testenv: ONCEMILL_TEST_POSTGRES: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := execute(ctx, server, "CREATE ROLE "+db.Schema+" LOGIN SUPERUSER", "ALTER ROLE "+db.Schema+" SET search_path = "+db.Schema); err != nil {
		t.Fatalf("testenv: create role: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		err := execute(ctx, server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+db.Schema+"'",
			"REASSIGN OWNED BY "+db.Schema+" TO CURRENT_USER", "DROP OWNED BY "+db.Schema, "DROP ROLE "+db.Schema)
		if err != nil {
			t.Errorf("testenv: drop role %s: %v", db.Schema, err)
		}
	})
	u.User, u.Host = url.User(db.Schema), pooler
	db.DSN = u.String()
	return db
}

// withSchema makes schema the only one that is searched, and marks the sessions
// with its name, so that the cleanup knows them.
func withSchema(server, schema string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	if u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", fmt.Errorf("want a URL postgres://..., not the scheme %q", u.Scheme)
	}
	q := u.Query()
	q.Set("search_path", schema)
	q.Set("application_name", schema)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// dropSchema ends leftover sessions first: one open transaction would block the drop for ever.
func dropSchema(ctx context.Context, server, schema string) error {
	return execute(ctx, server,
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '"+schema+"'",
		"DROP SCHEMA "+schema+" CASCADE")
}

func execute(ctx context.Context, server string, statements ...string) error {
	db, err := sql.Open("pgx", server)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// PostgresServer returns the URL of a database on the server, for a test that makes databases of its own; or it skips the test.
func PostgresServer(t testing.TB) string {
	t.Helper()
	return lookup(t, "postgres")[0]
}
