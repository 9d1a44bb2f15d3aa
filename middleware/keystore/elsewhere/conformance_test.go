package elsewhere_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/elsewhere"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
)

var quiet = store.Options{Logger: slog.New(slog.DiscardHandler)}

// inRedis returns what opens keys of the test's own, each time on connections of its own.
func inRedis(t *testing.T) func(t *testing.T) keystore.Elsewhere {
	t.Helper()
	c := redisstore.Config{URL: testenv.Redis(t), Prefix: testenv.Name(t, "joined") + ":"}
	return func(t *testing.T) keystore.Elsewhere {
		far, err := redisstore.Open(t.Context(), c, quiet)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, far.Close()) })
		return far
	}
}

// inDynamoDB does the same there.
func inDynamoDB(t *testing.T) func(t *testing.T) keystore.Elsewhere {
	t.Helper()
	c := dynamostore.Config{Endpoint: testenv.DynamoDB(t).Endpoint, Region: "eu-central-1", Table: testenv.Name(t, "joined"), Create: true}
	return func(t *testing.T) keystore.Elsewhere {
		far, err := dynamostore.Open(t.Context(), c, quiet)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, far.Close()) })
		return far
	}
}

// joined is a database whose leases are elsewhere.
func joined(db store.Store, far keystore.Elsewhere) *elsewhere.Store {
	hints := elsewhere.NewHints(db.Keys(), far, quiet.Logger)
	return elsewhere.New(db.Keys(), far, hints, elsewhere.Options{Lease: 10 * time.Minute, Logger: quiet.Logger})
}

func conformance(t *testing.T, open func(t *testing.T) func(t *testing.T) store.Store, keys func(t *testing.T) func(t *testing.T) keystore.Elsewhere) {
	t.Helper()
	keystoretest.RunLeases(t, func(t *testing.T) keystoretest.Harness {
		openKeys, reopen := keys(t), open(t)
		handle := func(t *testing.T) (keystoretest.Handle, store.Store) {
			db := reopen(t)
			t.Cleanup(func() { _ = db.Close() })
			require.NoError(t, db.Migrate(t.Context(), nil))
			return keystoretest.Handle{Store: joined(db, openKeys(t)), Parking: db.Parking(), Outbox: db.Outbox()}, db
		}
		first, db := handle(t)
		return keystoretest.Harness{
			Handle: first, DB: db.DB(),
			Reopen: func(t *testing.T) keystoretest.Handle {
				h, _ := handle(t)
				return h
			},
		}
	})
}

func openSQLite(t *testing.T) func(t *testing.T) store.Store {
	path := filepath.Join(t.TempDir(), "test.db")
	return func(t *testing.T) store.Store {
		s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path}, quiet)
		require.NoError(t, err)
		return s
	}
}

func openPostgres(t *testing.T) func(t *testing.T) store.Store {
	db := testenv.Postgres(t)
	return func(t *testing.T) store.Store {
		s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: db.DSN, Schema: db.Schema}, quiet)
		require.NoError(t, err)
		return s
	}
}

// A database whose leases are elsewhere is a store like any other, for all that claims and leases promise.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, d := range []struct {
		name string
		open func(t *testing.T) func(t *testing.T) store.Store
	}{{"SQLite", openSQLite}, {"PostgreSQL", openPostgres}} {
		for _, k := range []struct {
			name string
			open func(t *testing.T) func(t *testing.T) keystore.Elsewhere
		}{{"Redis", inRedis}, {"DynamoDB", inDynamoDB}} {
			t.Run(d.name+"/"+k.name, func(t *testing.T) {
				t.Parallel()
				conformance(t, d.open, k.open)
			})
		}
	}
}
