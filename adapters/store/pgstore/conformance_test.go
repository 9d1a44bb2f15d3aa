package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/outbox/outboxtest"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/parking/parkingtest"
)

// world is one schema of the test's own, and a way of reaching it.
type world struct {
	db testenv.Database
	// plain is a pool of the caller's, with pgx's own driver.
	plain bool
	// pooled goes through a PgBouncer in transaction mode; unnamed sends no named statements, as one before 1.21 wants it.
	pooled, unnamed bool
}

func newWorld(t *testing.T) (*world, *pgstore.Store) {
	t.Helper()
	return world{}.fresh(t)
}

func (w *world) migrated(t *testing.T) *pgstore.Store {
	t.Helper()
	s := w.open(t)
	require.NoError(t, s.Migrate(t.Context(), nil))
	return s
}

func (w *world) open(t *testing.T) *pgstore.Store {
	t.Helper()
	dsn := w.db.DSN
	if w.unnamed {
		dsn += "&default_query_exec_mode=cache_describe"
	}
	if w.plain {
		pool, err := sqlx.Open("pgx", dsn)
		require.NoError(t, err)
		s := pgstore.New(pool, pgstore.Config{})
		t.Cleanup(func() {
			require.NoError(t, s.Close())
			require.NoError(t, pool.Close())
		})
		return s
	}
	c := pgstore.Config{DSN: dsn, Schema: w.db.Schema}
	if w.pooled {
		c.Schema = "" // the role's search_path has it
	}
	s, err := pgstore.Open(t.Context(), c, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// ways runs a suite in each way of reaching the database; the less usual ones not with -short.
func ways(t *testing.T, suite func(t *testing.T, newWorld func(t *testing.T) (*world, *pgstore.Store))) {
	t.Parallel()
	for name, way := range map[string]world{"Pipelined": {}, "PoolOfTheCaller": {plain: true}, "PgBouncer": {pooled: true}} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && way != (world{}) {
				t.Skip("only one way with -short")
			}
			t.Parallel()
			suite(t, way.fresh)
		})
	}
}

// fresh makes a schema that is reached in the same way.
func (w world) fresh(t *testing.T) (*world, *pgstore.Store) {
	t.Helper()
	if w.pooled {
		w.db = testenv.PgBouncer(t)
	} else {
		w.db = testenv.Postgres(t)
	}
	return &w, w.migrated(t)
}

func TestKeystore(t *testing.T) {
	ways(t, runKeystore)
}

func runKeystore(t *testing.T, newWorld func(t *testing.T) (*world, *pgstore.Store)) {
	t.Helper()
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		w, s := newWorld(t)
		handle := func(s *pgstore.Store) keystoretest.Handle {
			return keystoretest.Handle{Store: s.Keys(), Parking: s.Parking(), Outbox: s.Outbox()}
		}
		return keystoretest.Harness{
			Handle: handle(s), DB: s.DB(),
			Reopen: func(t *testing.T) keystoretest.Handle { return handle(w.open(t)) },
		}
	})
}

func TestOutbox(t *testing.T) {
	ways(t, runOutbox)
}

func runOutbox(t *testing.T, newWorld func(t *testing.T) (*world, *pgstore.Store)) {
	t.Helper()
	outboxtest.Run(t, func(t *testing.T) outboxtest.Harness {
		w, s := newWorld(t)
		return outboxtest.Harness{
			Source: s.Outbox(), Begin: outboxtest.InSQL(s.DB(), s.Publish),
			Commit: func(ctx context.Context, records []outbox.Record) error {
				tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
				if err != nil {
					return err
				}
				return tx.Commit(ctx, []keystore.Completion{{Outbox: records}})
			},
			Reopen: func(t *testing.T) outbox.Source { return w.open(t).Outbox() },
		}
	})
}

func TestParking(t *testing.T) {
	ways(t, runParking)
}

func runParking(t *testing.T, newWorld func(t *testing.T) (*world, *pgstore.Store)) {
	t.Helper()
	parkingtest.Run(t, func(t *testing.T) parkingtest.Harness {
		w, s := newWorld(t)
		return parkingtest.Harness{
			Store:  s.Parking(),
			Settle: func(ctx context.Context, l parking.Leased) error { return settle(ctx, s.Keys(), l) },
			Reopen: func(t *testing.T) parking.Store { return w.open(t).Parking() },
			Contended: func(err error) bool {
				return s.Keys().Classify(err) == keystore.FaultContention
			},
		}
	})
}

// settle completes a parked row's key and removes the row, as a handler's success does.
func settle(ctx context.Context, keys keystore.Store, l parking.Leased) error {
	tx, err := keys.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	c := keystore.Claim{ID: keystore.ID{Scope: l.Scope, Key: l.Key}, Fingerprint: l.Fingerprint, OrderingKey: l.OrderingKey, Parked: &l.Lease, Redriven: l.Redriven}
	done := keystore.Completion{Claim: c, State: keystore.Completed, Retention: time.Hour, Settles: &l.Lease}
	if l.Key == "" {
		done.Claim, done.Keep = keystore.Claim{}, true
	} else {
		verdicts, err := tx.Claim(ctx, []keystore.Claim{c})
		if err != nil {
			return err
		}
		done.Keep = verdicts[0].Outcome != keystore.Fresh
	}
	return tx.Commit(ctx, []keystore.Completion{done})
}
