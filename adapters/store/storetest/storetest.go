// Package storetest runs every conformance suite that a database adapter must pass: keys, outbox with its
// relay, and parking with its feeder.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/outbox/outboxtest"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/parking/parkingtest"
)

// retention is longer than any test.
const retention = time.Hour

// Open opens the database of one test: a new, empty one on its first call, the same one again, on
// connections of its own as another process would, on later calls.
type Open func(t *testing.T) store.Store

// Run runs the suites. newDatabase is called once for each test; what Open opens is closed at the end of the test.
func Run(t *testing.T, newDatabase func(t *testing.T) Open) {
	t.Helper()
	t.Run("Keys", func(t *testing.T) {
		t.Parallel()
		keystoretest.Run(t, func(t *testing.T) keystoretest.Harness { return keys(t, newDatabase(t)) })
	})
	t.Run("Outbox", func(t *testing.T) {
		t.Parallel()
		outboxtest.Run(t, func(t *testing.T) outboxtest.Harness { return outgoing(t, newDatabase(t)) })
	})
	t.Run("Parking", func(t *testing.T) {
		t.Parallel()
		parkingtest.Run(t, func(t *testing.T) parkingtest.Harness { return parked(t, newDatabase(t)) })
	})
}

func (o Open) first(t *testing.T) store.Store {
	t.Helper()
	s := o.again(t)
	require.NoError(t, s.Migrate(t.Context(), nil))
	return s
}

func (o Open) again(t *testing.T) store.Store {
	t.Helper()
	s := o(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func keys(t *testing.T, open Open) keystoretest.Harness {
	s := open.first(t)
	handle := func(s store.Store) keystoretest.Handle {
		return keystoretest.Handle{Store: s.Keys(), Parking: s.Parking(), Outbox: s.Outbox()}
	}
	return keystoretest.Harness{
		Handle: handle(s), DB: s.DB(),
		Reopen: func(t *testing.T) keystoretest.Handle { return handle(open.again(t)) },
	}
}

func outgoing(t *testing.T, open Open) outboxtest.Harness {
	s := open.first(t)
	return outboxtest.Harness{
		Source: s.Outbox(), DB: s.DB(), Writers: s.Keys().Capabilities().Writers,
		Commit: func(ctx context.Context, records []outbox.Record) error {
			tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return tx.Commit(ctx, []keystore.Completion{{Outbox: records}})
		},
		Write: func(ctx context.Context, tx *sqlx.Tx, records []outbox.Record) error {
			return s.Publish(ctx, tx, records)
		},
		Reopen: func(t *testing.T) outbox.Source { return open.again(t).Outbox() },
	}
}

func parked(t *testing.T, open Open) parkingtest.Harness {
	s := open.first(t)
	return parkingtest.Harness{
		Store:     s.Parking(),
		Reopen:    func(t *testing.T) parking.Store { return open.again(t).Parking() },
		Contended: func(err error) bool { return s.Keys().Classify(err) == keystore.FaultContention },
		Settle:    func(ctx context.Context, l parking.Leased) error { return settle(ctx, s.Keys(), l) },
	}
}

// settle completes the key of a leased row, as the engine does after its handler's success.
func settle(ctx context.Context, s keystore.Store, l parking.Leased) error {
	tx, err := s.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	claim := keystore.Claim{
		ID: keystore.ID{Scope: l.Scope, Key: l.Key}, Fingerprint: l.Fingerprint, OrderingKey: l.OrderingKey,
		Parked: &l.Lease, Redriven: l.Redriven,
	}
	verdicts, err := tx.Claim(ctx, []keystore.Claim{claim})
	if err != nil {
		return err
	}
	if verdicts[0].Outcome != keystore.Fresh {
		return parking.ErrLeaseLost
	}
	return tx.Commit(ctx, []keystore.Completion{{Claim: claim, State: keystore.Completed, Retention: retention, Settles: &l.Lease}})
}
