package idempotency_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// shortLease ends within a test; long enough for a busy machine to renew it.
const shortLease = time.Second

// A healthy call is longer than its lease: it is renewed, nobody takes it over, and a copy meanwhile waits.
func TestF005LeaseIsRenewed(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		renewals := make(chan struct{}, 100)
		fault := func(_ context.Context, at faultpoint.Point) error {
			if at == faultpoint.BeforeRenewal {
				renewals <- struct{}{}
			}
			return nil
		}
		var outside provider
		b := idempotency.Binding{Lease: shortLease, Retry: idempotency.Retry{InProcess: -1}}
		b.External = external(func(ctx context.Context, msg *message.Message, scope, key string) (any, error) {
			for range 5 { // the fifth comes after the lease would have ended
				<-renewals
			}
			return outside.call(ctx, msg, scope, key)
		})
		first := h.newEngine(t, b, withFault(fault))
		second := h.newEngine(t, idempotency.Binding{Lease: shortLease, Retry: b.Retry, External: external(outside.call)}, on(h.open(t, 0)))
		one := first.deliver(newMessage("key", "1"))
		eventually(t, "the key is held", func() bool { return h.key(t, scope, "key").State == keystore.InProgress })
		second.acked(t, newMessage("key", "1"))
		require.Equal(t, "in-progress", h.rows(t, parking.Waiting)[0].Reason)
		require.NoError(t, one()[0])
		require.Zero(t, h.key(t, scope, "key").Takeovers)
		h.feedNow(t, second)
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}

// The first holder is paused in the middle of its call, its lease ends, and a second takes over and completes. The first one's completion
// is refused and its rows roll back; it neither buries the message nor marks the key failed.
func TestF005Zombie(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		pause := newBreakpoint(t, faultpoint.Called)
		paused := func(ctx context.Context, at faultpoint.Point) error {
			if at == faultpoint.BeforeRenewal {
				return errBroken // so that it does not learn in time that it has lost
			}
			return pause.fault(ctx, at)
		}
		var outside provider
		b := idempotency.Binding{Lease: shortLease, External: external(outside.call)}
		b.External.Unknown = idempotency.UnknownRetry
		var records atomic.Int64
		insert := b.External.Record
		b.External.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, result json.RawMessage) error {
			records.Add(1)
			return insert(ctx, tx, msg, result)
		}
		zombie := h.newEngine(t, b, withFault(paused), func(c *idempotency.Config) { c.Owner = "A" })
		heir := h.newEngine(t, b, on(h.open(t, 0)), func(c *idempotency.Config) { c.Owner = "B" })
		one := zombie.deliver(newMessage("key", "1"))
		pause.await(t)
		h.leaseIsOver(t, "key")
		heir.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, heir.events(idempotency.EventTakeover))
		pause.release()
		require.NoError(t, one()[0])
		require.Equal(t, 1, h.effects(t))
		record := h.key(t, scope, "key")
		require.Equal(t, keystore.Completed, record.State)
		require.Equal(t, "B", record.Owner)
		require.Equal(t, 2, outside.of("key"), "the provider deduplicates by the key")
		require.EqualValues(t, 1, records.Load())
		require.Empty(t, h.rows(t))
		require.Zero(t, zombie.events(idempotency.EventDead))
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`))
	})
}

// leaseIsOver waits until the store says that a key's lease has ended.
func (h *harness) leaseIsOver(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the lease ends", func() bool {
		record := h.key(t, scope, key)
		return record.State == keystore.InProgress && record.LeaseLeft <= 0
	})
}

// A lost lease ends the context of the call, with its cause.
func TestLostLeaseEndsTheCall(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		renewing := newBreakpoint(t, faultpoint.BeforeRenewal)
		var cause atomic.Value
		var calls atomic.Int64
		b := idempotency.Binding{Lease: shortLease, Timeout: time.Hour, Retry: idempotency.Retry{InProcess: -1}}
		b.External = external(func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			calls.Add(1)
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return nil, ctx.Err()
		})
		e := h.newEngine(t, b, withFault(renewing.fault))
		wait := e.deliver(newMessage("key", "1"))
		renewing.await(t)
		h.leaseIsOver(t, "key")
		verdicts, err := h.Keys().Acquire(t.Context(), "somebody else", []keystore.Claim{{ID: keystore.ID{Scope: scope, Key: "key"}}}, time.Hour)
		require.NoError(t, err)
		require.Equal(t, keystore.TakenOver, verdicts[0].Outcome)
		renewing.release()
		require.NoError(t, wait()[0])
		require.ErrorIs(t, cause.Load().(error), keystore.ErrLeaseLost)
		require.EqualValues(t, 1, calls.Load())
		require.Positive(t, e.events(idempotency.EventLeaseLost))
		rows := h.rows(t)
		require.Len(t, rows, 1)
		require.Equal(t, parking.Waiting, rows[0].State, "it waits for the other's lease")
		require.Zero(t, rows[0].Attempts)
		require.Equal(t, keystore.InProgress, h.key(t, scope, "key").State)
	})
}

// A renewal that the store does not answer is no lost lease.
func TestUnansweredRenewalIsNoLostLease(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var failures atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Lease: shortLease, External: external(func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			eventually(t, "renewals fail", func() bool { return failures.Load() >= 2 || ctx.Err() != nil })
			return "done", ctx.Err()
		})}, withFault(func(_ context.Context, at faultpoint.Point) error {
			if at == faultpoint.BeforeRenewal && failures.Add(1) <= 2 {
				return errBroken
			}
			return nil
		}))
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Zero(t, e.events(idempotency.EventLeaseLost))
		require.Equal(t, 1, h.effects(t))
	})
}

// A killed process leaves its key in progress. The early copy is neither acked as a duplicate nor a dead letter, waiting uses up no
// attempt, and the effect is there soon after the lease.
func TestF006KilledProcessLeavesItsKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		b := idempotency.Binding{Lease: shortLease, Retry: idempotency.Retry{InProcess: 50 * time.Millisecond, Attempts: 1}, External: external(outside.call)}
		b.External.Unknown = idempotency.UnknownRetry
		h.dies(t, b, faultpoint.Called, newMessage("key", "1"))
		heir := h.newEngine(t, b, on(h.open(t, 0)))
		heir.acked(t, redelivered(newMessage("key", "1")))
		require.Zero(t, heir.events(idempotency.EventDuplicate))
		require.Equal(t, 1, heir.events("parked:in-progress"))
		h.feed(t, heir)
		eventually(t, "the effect is there", func() bool { return h.effects(t) == 1 })
		eventually(t, "nothing waits", func() bool { return len(h.rows(t)) == 0 })
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`))
		require.Zero(t, h.count(t, `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`))
		require.Equal(t, 1, heir.events(idempotency.EventTakeover))
	})
}

// The lease of a parked row is lost while its call runs: the key is completed all the same, and whoever has the row finds it so.
func TestExternalParkedRowIsLost(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		b := idempotency.Binding{External: external(outside.call)}
		called := newBreakpoint(t, faultpoint.Called)
		slow := h.newEngine(t, b, withFault(called.fault))
		other := h.newEngine(t, b, on(h.open(t, 0)))
		require.NoError(t, h.Parking().Park(t.Context(), []parking.Row{{State: parking.Waiting, Scope: scope, Topic: topic, UUID: "u", Key: "key", Payload: []byte("1")}}))
		row := h.leased(t, scope, time.Millisecond)
		ran := make(chan error, 1)
		go func() { ran <- slow.RunParked(context.Background(), row) }()
		called.await(t)
		eventually(t, "the row's lease is over", func() bool {
			due, waits, err := h.Parking().NextDue(t.Context(), []string{scope})
			return err == nil && waits && due <= 0
		})
		again := h.leased(t, scope, time.Minute)
		called.release()
		require.NoError(t, <-ran)
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.NoError(t, other.RunParked(t.Context(), again))
		require.Empty(t, h.rows(t))
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
	})
}
