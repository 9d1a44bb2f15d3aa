package elsewhere_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/elsewhere"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
)

var quiet = store.Options{Logger: slog.New(slog.DiscardHandler)}

// openRedis opens the keys below prefix, on connections of its own.
func openRedis(t *testing.T, url, prefix string) *redisstore.Store {
	t.Helper()
	far, err := redisstore.Open(t.Context(), redisstore.Config{URL: url, Prefix: prefix}, quiet)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, far.Close()) })
	return far
}

// joined is a database whose leases are in Redis.
func joined(t *testing.T, db store.Store, far keystore.Elsewhere) *elsewhere.Store {
	t.Helper()
	hints := elsewhere.NewHints(db.Keys(), far, quiet.Logger)
	return elsewhere.New(db.Keys(), far, hints, elsewhere.Options{Lease: 10 * time.Minute, Logger: quiet.Logger})
}

func conformance(t *testing.T, open func(t *testing.T) func(t *testing.T) store.Store) {
	t.Helper()
	url := testenv.Redis(t)
	keystoretest.RunLeases(t, func(t *testing.T) keystoretest.Harness {
		prefix := testenv.Name(t, "joined") + ":"
		reopen := open(t)
		handle := func(t *testing.T) (keystoretest.Handle, store.Store) {
			db := reopen(t)
			t.Cleanup(func() { _ = db.Close() })
			require.NoError(t, db.Migrate(t.Context(), nil))
			return keystoretest.Handle{Store: joined(t, db, openRedis(t, url, prefix)), Parking: db.Parking(), Outbox: db.Outbox()}, db
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

// A database whose leases are elsewhere is a store like any other, for all that claims and leases promise.
func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		conformance(t, func(t *testing.T) func(t *testing.T) store.Store {
			path := filepath.Join(t.TempDir(), "test.db")
			return func(t *testing.T) store.Store {
				s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path}, quiet)
				require.NoError(t, err)
				return s
			}
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		conformance(t, func(t *testing.T) func(t *testing.T) store.Store {
			db := testenv.Postgres(t)
			return func(t *testing.T) store.Store {
				s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: db.DSN, Schema: db.Schema}, quiet)
				require.NoError(t, err)
				return s
			}
		})
	})
}
