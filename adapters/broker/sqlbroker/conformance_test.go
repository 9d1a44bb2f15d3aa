package sqlbroker_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestConformance(t *testing.T) {
	db := testenv.Postgres(t)
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t, db) })
}

func TestWatermill(t *testing.T) {
	db := testenv.Postgres(t)
	brokertest.Watermill(t, func(t *testing.T) brokertest.Harness { return harness(t, db) })
}

func BenchmarkSQL(b *testing.B) { brokertest.Benchmark(b, harness(b, testenv.Postgres(b))) }

// harness gives each replica a proxy, whose cut is the replica's death.
func harness(t testing.TB, db testenv.Database) brokertest.Harness {
	var proxies sync.Map
	return brokertest.Harness{
		Name: sqlbroker.Name,
		Leaks: []goleak.Option{
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).server"),
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).freeBlocker"),
		},
		Open: func(t testing.TB) broker.Broker {
			if _, bench := t.(*testing.B); bench {
				return open(t, config(db, nil))
			}
			proxied, proxy := throughProxy(t, db)
			b := open(t, config(proxied, nil))
			proxies.Store(b, proxy)
			return b
		},
		Crash: func(t testing.TB, b broker.Broker) {
			proxy, known := proxies.Load(b)
			require.True(t, known)
			proxy.(*testenv.TCPProxy).Cut()
		},
		Foreign: func(t testing.TB, topic string, m brokertest.Foreign) {
			var metadata, payload any
			if m.Headers != nil {
				text, err := json.Marshal(m.Headers)
				require.NoError(t, err)
				metadata = string(text)
			}
			if m.Payload != nil {
				payload = m.Payload
			}
			execute(t, plain(t, db), fmt.Sprintf(`INSERT INTO %q (uuid, payload, metadata, transaction_id) VALUES ('', $1, $2, pg_current_xact_id())`, "watermill_"+topic), payload, metadata)
		},
	}
}

// throughProxy is db behind a proxy.
func throughProxy(t testing.TB, db testenv.Database) (testenv.Database, *testenv.TCPProxy) {
	t.Helper()
	u, err := url.Parse(db.DSN)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	return testenv.Database{DSN: u.String(), Schema: db.Schema}, proxy
}

// config is the default configuration on db, made as the application makes it, with a short visibility.
func config(db testenv.Database, change func(*sqlbroker.Config)) sqlbroker.Config {
	var cfg sqlbroker.Config
	_ = sqlbroker.Factory().Check(func(target any) error {
		cfg = *target.(*sqlbroker.Config)
		return nil
	})
	cfg.DSN, cfg.Schema, cfg.Visibility = db.DSN, db.Schema, 4*time.Second
	if change != nil {
		change(&cfg)
	}
	return cfg
}

func open(t testing.TB, cfg sqlbroker.Config) broker.Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	b, err := sqlbroker.Open(ctx, cfg, broker.Options{Logger: slog.New(slog.DiscardHandler), ClientName: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// plain is a connection without the adapter.
func plain(t testing.TB, db testenv.Database) *sql.DB {
	t.Helper()
	conn, err := openPlain(db)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func openPlain(db testenv.Database) (*sql.DB, error) { return sql.Open("pgx", db.DSN) }

func execute(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}
