package handlertest

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
)

// OnPostgres keeps the kit's tables on a PostgreSQL server, in databases of their own that the test makes and drops. url is
// that of a database there, as postgres://user@host:5432/postgres; the user may create databases and functions.
func OnPostgres(url string) Option {
	return func(k *Kit) { k.place = newPostgres(k.t, url) }
}

// postgresDatabase is one database on a server. Its clock is a function in a schema that is searched before PostgreSQL's own.
type postgresDatabase struct {
	server string // the URL of a database that is there already
	family string // begins the names of all databases of a test, also those that its killed processes leave
	name   string
	ahead  atomic.Int64 // of the server's clock, as far as this process moved it
}

const postgresClock = `
CREATE SCHEMA handlertest;
CREATE TABLE handlertest.clock (ahead interval NOT NULL);
INSERT INTO handlertest.clock VALUES ('0');
CREATE FUNCTION handlertest.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
	AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM handlertest.clock'`

func newPostgres(t testing.TB, server string) database {
	t.Helper()
	family := familyOf(t, func(family string) { dropFamily(t, server, family) })
	p := createPostgres(t, server, family, "")
	if err := p.exec(t.Context(), p.url("clock"), postgresClock); err != nil {
		t.Fatalf("handlertest: the clock of database %s: %v", p.name, err)
	}
	return p
}

// createPostgres makes a database from a template ("" is the server's), and drops it when t ends.
func createPostgres(t testing.TB, server, family, template string) *postgresDatabase {
	t.Helper()
	p := &postgresDatabase{server: server, family: family, name: memberOf(family)}
	create := "CREATE DATABASE " + p.name
	if template != "" {
		create += " TEMPLATE " + template
	}
	const tries = 50 // a connection to the template that is being closed, or comes back, is in the way
	var err error
	for range tries {
		if template != "" {
			_ = p.exec(t.Context(), server, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+template+`'`)
		}
		if err = p.exec(t.Context(), server, create); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("handlertest: making database %s: %v", p.name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.exec(ctx, server, "DROP DATABASE "+p.name+" WITH (FORCE)"); err != nil {
			t.Errorf("handlertest: dropping database %s: %v", p.name, err)
		}
	})
	return p
}

// dropFamily drops what is left of a test's databases.
func dropFamily(t testing.TB, server, family string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := sqlx.Open("pgx", server)
	if err != nil {
		t.Errorf("handlertest: dropping databases: %v", err)
		return
	}
	defer db.Close()
	var names []string
	err = db.SelectContext(ctx, &names, `SELECT datname FROM pg_database WHERE starts_with(datname, $1)`, family)
	for _, name := range names {
		if err == nil {
			_, err = db.ExecContext(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		}
	}
	if err != nil {
		t.Errorf("handlertest: dropping databases: %v", err)
	}
}

func (p *postgresDatabase) exec(ctx context.Context, url, statement string) error {
	db, err := sqlx.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// url is that of the database, for a replica.
func (p *postgresDatabase) url(replica string) string {
	u, err := url.Parse(p.server)
	if err != nil {
		return p.server // pgx says what is wrong with it
	}
	u.Path = "/" + p.name
	q := u.Query()
	q.Set("search_path", "public,handlertest,pg_catalog")
	q.Set("application_name", replica)
	u.RawQuery = q.Encode()
	return u.String()
}

func (p *postgresDatabase) open(ctx context.Context, replica string, log *slog.Logger) (store.Store, error) {
	return pgstore.Open(ctx, pgstore.Config{DSN: p.url(replica)}, store.Options{Logger: log})
}

func (p *postgresDatabase) copy(t testing.TB, _ *sqlx.DB) database {
	t.Helper()
	c := createPostgres(t, p.server, p.family, p.name)
	c.ahead.Store(p.ahead.Load())
	return c
}

func (p *postgresDatabase) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

func (p *postgresDatabase) advance(ctx context.Context, d time.Duration) error {
	p.ahead.Add(int64(d))
	return p.exec(ctx, p.url("clock"), fmt.Sprintf(`UPDATE handlertest.clock SET ahead = ahead + interval '%d microseconds'`, d.Microseconds()))
}

// cut ends the replica's sessions. Who uses one finds out by itself.
func (p *postgresDatabase) cut(ctx context.Context, replica string) error {
	return p.exec(ctx, p.server,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+p.name+`' AND application_name = '`+replica+`'`)
}

func (p *postgresDatabase) address() address {
	return address{p.name, p.family, time.Duration(p.ahead.Load())}
}

func (p *postgresDatabase) at(a address) database {
	there := &postgresDatabase{server: p.server, family: a.Family, name: a.Place}
	there.ahead.Store(int64(a.Ahead))
	return there
}

func (p *postgresDatabase) tables() string {
	return `SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename`
}
