package sqlbroker_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t, db) })
	})
}

func TestWatermill(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		brokertest.Watermill(t, func(t *testing.T) brokertest.Harness { return harness(t, db) })
	})
}

func BenchmarkSQL(b *testing.B) {
	for _, kind := range []string{"postgres", "mysql"} {
		b.Run(kind, func(b *testing.B) { brokertest.Benchmark(b, harness(b, newDatabase(b, kind))) })
	}
}

// harness gives each replica a proxy, whose cut is the replica's death.
func harness(t testing.TB, db database) brokertest.Harness {
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
			execute(t, plain(t, db), db.insert(topic), "", payload, metadata)
		},
	}
}

// config is the default configuration on db, made as the application makes it, with a short visibility.
func config(db database, change func(*sqlbroker.Config)) sqlbroker.Config {
	var cfg sqlbroker.Config
	_ = sqlbroker.Factory().Check(func(target any) error {
		cfg = *target.(*sqlbroker.Config)
		return nil
	})
	cfg.DSN, cfg.Schema, cfg.Visibility = db.dsn, db.schema, 4*time.Second
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

func execute(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}
