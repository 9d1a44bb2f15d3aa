package mysqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/outbox/outboxtest"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/parking/parkingtest"
)

// world is one database of the test's own.
type world struct{ db testenv.MySQLDatabase }

func newWorld(t *testing.T, options ...string) (*world, *mysqlstore.Store) {
	t.Helper()
	w := &world{db: testenv.MySQL(t, options...)}
	s := w.open(t)
	require.NoError(t, s.Migrate(t.Context(), nil))
	return w, s
}

func (w *world) open(t *testing.T) *mysqlstore.Store {
	t.Helper()
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: w.db.DSN}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestKeystore(t *testing.T) {
	t.Parallel()
	keystoretest.Run(t, func(t *testing.T) keystoretest.Harness {
		w, s := newWorld(t)
		handle := func(s *mysqlstore.Store) keystoretest.Handle {
			return keystoretest.Handle{Store: s.Keys(), Parking: s.Parking(), Outbox: s.Outbox()}
		}
		return keystoretest.Harness{
			Handle: handle(s), DB: s.DB(),
			Reopen: func(t *testing.T) keystoretest.Handle { return handle(w.open(t)) },
		}
	})
}

func TestOutbox(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
