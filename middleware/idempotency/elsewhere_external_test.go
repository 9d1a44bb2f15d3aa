package idempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// leaseIsOver waits until the store elsewhere says that a key's lease has ended.
func (f *far) leaseIsOver(key string) {
	f.t.Helper()
	eventually(f.t, "the lease ends", func() bool {
		r := f.key(key)
		return r.State == keystore.InProgress && r.LeaseLeft <= 0
	})
}

// neverCompletes is a store elsewhere as a process leaves it that ends after the database's commit.
type neverCompletes struct{ keystore.Elsewhere }

var errDied = errors.New("the process has ended")

func (neverCompletes) Complete(context.Context, []keystore.Completion) error { return errDied }

// F003 (b'): a crash between the database's commit and the completion elsewhere. The key is in progress there and completed here: the
// next copy neither calls nor writes rows.
func TestF003CrashBetweenCommitAndCompletionElsewhere(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
		var outside provider
		b := idempotency.Binding{Lease: shortLease, External: external(outside.call)}
		dead := h.newEngine(t, b, with(neverCompletes{f}))
		dead.acked(t, newMessage("key", "1"))
		require.Equal(t, keystore.InProgress, f.key("key").State)
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)

		next := h.newEngine(t, b, with(f), on(h.open(t, 0)))
		next.acked(t, newMessage("key", "1"))
		f.leaseIsOver("key")
		next.acked(t, newMessage("key", "1"))
		require.Equal(t, keystore.Completed, f.key("key").State, "the next copy settles the lease")
		next.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, next.hinted())
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
		require.Zero(t, next.events(idempotency.EventTakeover))
	})
}

// A holder that is paused in its call loses its lease to another one; its late completion is refused, and the rows are written once.
func TestF005ZombieElsewhere(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
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
		zombie := h.newEngine(t, b, with(f), withFault(paused), func(c *idempotency.Config) { c.Owner = "A" })
		heir := h.newEngine(t, b, with(f), on(h.open(t, 0)), func(c *idempotency.Config) { c.Owner = "B" })
		one := zombie.deliver(newMessage("key", "1"))
		pause.await(t)
		f.leaseIsOver("key")
		heir.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, heir.events(idempotency.EventTakeover))
		pause.release()
		require.NoError(t, one()[0])
		require.Equal(t, 1, h.effects(t))
		record := h.key(t, scope, "key")
		require.Equal(t, keystore.Completed, record.State)
		require.Equal(t, "B", record.Owner)
		require.Equal(t, 2, outside.of("key"), "the provider deduplicates by the key")
		require.Empty(t, h.rows(t))
	})
}

// F048, keys of an external handler: the lease is lost while its call runs. The process notices at its next renewal; the call counts as one of
// unknown outcome, and its policy decides.
func TestF048LeaseIsLostInTheCall(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
		var calls atomic.Int64
		calling := make(chan struct{}, 1)
		b := idempotency.Binding{Lease: shortLease}
		b.External = external(func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			calls.Add(1)
			calling <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		e := h.newEngine(t, b, with(f))
		wait := e.deliver(newMessage("key", "1"))
		<-calling
		f.lose()
		require.NoError(t, wait()[0])
		require.Positive(t, e.events(idempotency.EventLeaseLost))
		require.EqualValues(t, 1, calls.Load(), "at most once unless a person decides")
		rows := h.rows(t)
		require.Len(t, rows, 1)
		require.Equal(t, parking.InDoubt, rows[0].State)
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "key").State)
		require.Zero(t, h.effects(t))
	})
}

// F048: the lease is lost after a call whose result is known: it is recorded, and not called again.
func TestF048LeaseIsLostBeforeTheRecord(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
		pause := newBreakpoint(t, faultpoint.Called)
		var outside provider
		e := h.newEngine(t, idempotency.Binding{External: external(outside.call)}, with(f), withFault(pause.fault))
		wait := e.deliver(newMessage("key", "1"))
		pause.await(t)
		f.lose()
		pause.release()
		require.NoError(t, wait()[0])
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Empty(t, h.rows(t))
	})
}

// F048: what the guarantee says is lost, and nothing more. The lease is lost while its call runs, and another process calls for a copy at
// the same time: two calls under one downstream key, one set of rows.
func TestF048LostLeaseMayCallTwiceAndRecordsOnce(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
		pause := newBreakpoint(t, faultpoint.Called)
		var outside provider
		b := idempotency.Binding{External: external(outside.call)}
		first := h.newEngine(t, b, with(f), withFault(pause.fault))
		second := h.newEngine(t, b, with(f), on(h.open(t, 0)))
		one := first.deliver(newMessage("key", "1"))
		pause.await(t)
		f.lose()
		second.acked(t, newMessage("key", "1"))
		pause.release()
		require.NoError(t, one()[0])
		require.Equal(t, 2, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		f.lose()
		second.acked(t, newMessage("key", "1"))
		require.Equal(t, 2, outside.of("key"), "once the database has the key, nothing elsewhere brings it back")
		require.Empty(t, h.rows(t))
	})
}

// A restart with an append-only file in mid-load: every message is called for once and recorded once.
func TestRestartElsewhereInMidLoad(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		server := testenv.PrivateRedis(t, "--appendfsync always")
		f := openFar(t, server.Address)
		var outside provider
		e := h.newEngine(t, idempotency.Binding{External: external(outside.call)}, with(f))
		const n = 60
		keys := make([]string, n)
		msgs := make([]*message.Message, n)
		for i := range msgs {
			keys[i] = "key-" + string(rune('0'+i))
			msgs[i] = newMessage(keys[i], "1")
		}
		wait := e.deliver(msgs...)
		eventually(t, "the load runs", func() bool { return h.effects(t) > n/10 })
		server.Crash()
		server.Start()
		require.NoError(t, errors.Join(wait()...))
		for _, key := range keys {
			require.Equal(t, 1, outside.of(key), key)
		}
		require.Equal(t, n, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}
