package handlertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
)

// OnMySQL keeps the kit's tables on a MySQL or MariaDB server, in databases of their own that the test makes and drops. dsn is
// that of a database there, as user:password@tcp(host:3306)/mysql; the user may create databases and functions, and see and
// end the sessions that it made. A plugin whose migrations make views or routines is refused: the kit copies tables and triggers.
func OnMySQL(dsn string) Option {
	return func(k *Kit) { k.place = newMySQL(k.t, dsn) }
}

// mysqlDatabase is one database on a server. Its clock is a function, which reads a table.
type mysqlDatabase struct {
	server string // the connection string of a database that is there already
	family string
	name   string
	ahead  atomic.Int64 // of the server's clock, as far as this process moved it

	mu    sync.Mutex
	conns map[string][]net.Conn // by replica
}

const (
	mysqlClock      = "handlertest_now"
	mysqlClockTable = "handlertest_clock"
)

var mysqlClockSetup = []string{
	"CREATE TABLE " + mysqlClockTable + " (ahead bigint NOT NULL) ENGINE = InnoDB",
	"INSERT INTO " + mysqlClockTable + " VALUES (0)",
}

const mysqlClockFunction = "CREATE FUNCTION " + mysqlClock + "() RETURNS datetime(6) NOT DETERMINISTIC READS SQL DATA " +
	"RETURN utc_timestamp(6) + INTERVAL (SELECT ahead FROM " + mysqlClockTable + ") MICROSECOND"

func newMySQL(t testing.TB, server string) database {
	t.Helper()
	family := familyOf(t, func(family string) { dropMySQL(t, server, family) })
	m := createMySQL(t, server, family)
	if err := m.exec(t.Context(), append(mysqlClockSetup, mysqlClockFunction)...); err != nil {
		t.Fatalf("handlertest: the clock of database %s: %v", m.name, err)
	}
	return m
}

// createMySQL makes an empty database, and drops it when t ends.
func createMySQL(t testing.TB, server, family string) *mysqlDatabase {
	t.Helper()
	m := &mysqlDatabase{server: server, family: family, name: memberOf(family), conns: map[string][]net.Conn{}}
	err := onServer(t.Context(), server, "", func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(t.Context(), "CREATE DATABASE "+m.name)
		return err
	})
	if err != nil {
		t.Fatalf("handlertest: making database %s: %v", m.name, err)
	}
	t.Cleanup(func() { dropMySQL(t, server, m.name) })
	return m
}

// dropMySQL drops the databases whose name begins so, and ends the sessions there, which would hold it up.
func dropMySQL(t testing.TB, server, prefix string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := onServer(ctx, server, "", func(conn *sqlx.Conn) error {
		var sessions []int64
		err := conn.SelectContext(ctx, &sessions, `SELECT id FROM information_schema.processlist WHERE LEFT(db, ?) = ?`, len(prefix), prefix)
		if err != nil {
			return err
		}
		for _, id := range sessions {
			_, _ = conn.ExecContext(ctx, fmt.Sprintf("KILL %d", id)) // it may have ended by itself
		}
		var names []string
		err = conn.SelectContext(ctx, &names, `SELECT schema_name FROM information_schema.schemata WHERE LEFT(schema_name, ?) = ?`, len(prefix), prefix)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, err := conn.ExecContext(ctx, "DROP DATABASE "+name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("handlertest: dropping databases %s*: %v", prefix, err)
	}
}

// onServer does something on one connection to a database of the server; "" is that of the connection string.
func onServer(ctx context.Context, server, database string, do func(*sqlx.Conn) error) error {
	cfg, err := mysql.ParseDSN(server)
	if err != nil {
		return errors.New("the connection string is not of the form user:password@tcp(host:3306)/database")
	}
	if database != "" {
		cfg.DBName = database
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	defer db.Close()
	conn, err := db.Connx(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	return do(conn)
}

func (m *mysqlDatabase) exec(ctx context.Context, statements ...string) error {
	return onServer(ctx, m.server, m.name, func(conn *sqlx.Conn) error {
		for _, statement := range statements {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

func (m *mysqlDatabase) open(ctx context.Context, replica string, log *slog.Logger) (store.Store, error) {
	return mysqlstore.Open(ctx, mysqlstore.Config{DSN: m.server, Schema: m.name, Clock: mysqlClock + "()"}, store.Options{
		Logger: log, ClientName: replica,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, network, address)
			if err == nil {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.conns[replica] = append(m.conns[replica], conn)
			}
			return conn, err
		},
	})
}

func (m *mysqlDatabase) now() time.Time { return time.Now().Add(time.Duration(m.ahead.Load())) }

func (m *mysqlDatabase) advance(ctx context.Context, d time.Duration) error {
	m.ahead.Add(int64(d))
	return m.exec(ctx, fmt.Sprintf("UPDATE %s SET ahead = ahead + %d", mysqlClockTable, d.Microseconds()))
}

// cut closes the replica's connections. Who uses one finds out by itself, and so does the server.
func (m *mysqlDatabase) cut(_ context.Context, replica string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns[replica] {
		_ = conn.Close()
	}
	delete(m.conns, replica)
	return nil
}

func (m *mysqlDatabase) address() address {
	return address{m.name, m.family, time.Duration(m.ahead.Load())}
}

func (m *mysqlDatabase) at(a address) database {
	there := &mysqlDatabase{server: m.server, family: a.Family, name: a.Place, conns: map[string][]net.Conn{}}
	there.ahead.Store(int64(a.Ahead))
	return there
}

func (m *mysqlDatabase) tables() string {
	return "SELECT concat('`', table_name, '`') FROM information_schema.tables " +
		"WHERE table_schema = database() AND table_name <> '" + mysqlClockTable + "' ORDER BY table_name"
}
