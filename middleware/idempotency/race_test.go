package idempotency_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// parked puts a message where a retry waits for it, due now.
func (h *harness) parked(t *testing.T, key string, more ...string) *message.Message {
	t.Helper()
	msg := newMessage(key, "1", more...)
	e := h.newEngine(t, idempotency.Binding{
		Retry:   idempotency.Retry{InProcess: -1, First: 1, Max: 1},
		Handler: failing(func(*message.Message) error { return errBroken }),
	}, quiet)
	e.acked(t, msg)
	return msg
}

// held makes an engine whose first handler stops in the middle of its transaction.
func (h *harness) held(t *testing.T, outcome error) (*engine, *breakpoint) {
	hold := newBreakpoint(t, "handler")
	return h.newEngine(t, idempotency.Binding{
		Retry: idempotency.Retry{InProcess: -1, First: 1, Max: 1},
		Handler: failing(func(*message.Message) error {
			hold.hit()
			return outcome
		})}, quiet), hold
}

// runs runs a row as a feeder does.
func runs(e *engine, row parking.Leased) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- e.RunParked(context.Background(), row) }()
	return ended
}

// meets waits until somebody waits for a lock that is held. SQLite's writers queue, there the order is given.
func (h *harness) meets(t *testing.T) {
	t.Helper()
	if !h.sqlite() {
		eventually(t, "the rival waits", func() bool { return h.lockWaits(t) > 0 })
	}
}

// The feeder runs a parked message when its duplicate comes from the broker.
func TestRaceFeederAgainstDuplicate(t *testing.T) {
	for name, outcome := range map[string]error{"run succeeds": nil, "run fails": errBroken} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				msg := h.parked(t, "key")
				feeder, hold := h.held(t, outcome)
				ran := runs(feeder, h.leased(t, scope, time.Minute))
				hold.await(t)
				consumer := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)))
				copied := consumer.deliver(redelivered(msg))
				h.meets(t)
				hold.release()
				require.NoError(t, <-ran)
				require.NoError(t, copied()[0])
				require.Zero(t, consumer.events(idempotency.EventCompleted), "the copy is never the one that runs")
				h.feedNow(t, consumer)
				require.Equal(t, 1, h.effects(t))
				require.Empty(t, h.rows(t))
			})
		})
	}
}

// A copy took the key between the failure of the first and its parking: the row finds the work done.
func TestRaceCopyBetweenFailureAndParking(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		parks := newBreakpoint(t, faultpoint.BeforeParking)
		fails := h.newEngine(t, idempotency.Binding{
			Retry:   idempotency.Retry{InProcess: -1, First: 1, Max: 1},
			Handler: failing(func(*message.Message) error { return errBroken }),
		}, withFault(parks.fault))
		one := fails.deliver(newMessage("key", "1"))
		parks.await(t)
		works, hold := h.held(t, nil)
		two := works.deliver(newMessage("key", "1"))
		hold.await(t)
		parks.release()
		if h.sqlite() {
			hold.release()
			require.NoError(t, one()[0])
		} else {
			require.NoError(t, one()[0])
			ran := runs(fails, h.leased(t, scope, time.Minute))
			h.meets(t)
			hold.release()
			require.NoError(t, <-ran)
		}
		require.NoError(t, two()[0])
		h.feedNow(t, fails)
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}

// A person sends a dead letter back, and while it runs its duplicate and another payload of its key come from the broker: it alone
// has its effect, and the key is nobody else's in between.
func TestRaceRedrive(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		refuses := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error { return refusal{"no"} })}, quiet)
		msg := newMessage("key", "1")
		refuses.acked(t, msg)
		h.redrive(t, h.dead(t).ID, "")
		consumer := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)))
		// Before it runs:
		consumer.acked(t, redelivered(msg), newMessage("key", "other"))
		require.Equal(t, 1, consumer.events(idempotency.EventRejected))

		feeder, hold := h.held(t, nil)
		ran := runs(feeder, h.leased(t, scope, time.Minute))
		hold.await(t)
		// While it runs:
		copied := consumer.deliver(redelivered(msg), newMessage("key", "other"))
		if !h.sqlite() {
			for _, err := range copied() { // the key stays failed until the commit: nobody waits
				require.NoError(t, err)
			}
		}
		hold.release()
		require.NoError(t, <-ran)
		for _, err := range copied() {
			require.NoError(t, err)
		}
		// After it:
		consumer.acked(t, redelivered(msg), newMessage("key", "other"))
		require.Equal(t, []string{"1"}, h.values(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
		require.Equal(t, 3, consumer.events("dead_letter:payload-mismatch"))
		require.Zero(t, consumer.events(idempotency.EventCompleted))
	})
}

// A mismatch that is sent back under a key of its own is a message of its own; its children derive from the new key.
func TestRedriveUnderAnotherKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if err := tx.Publish(ctx, "done", "x"); err != nil {
				return nil, err
			}
			return effect(ctx, tx, msg)
		}})
		e.acked(t, newMessage("key", "1"), newMessage("key", "other"))
		h.redrive(t, h.dead(t).ID, "key-2")
		h.runDue(t, e)
		require.Equal(t, 1, h.effectsOf(t, "key"))
		require.Equal(t, 1, h.effectsOf(t, "key-2"))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key-2").State)
		require.Equal(t, envelope.DeriveUUID(scope, "key-2", 0), h.outgoing(t)[1].UUID)
		e.acked(t, newMessage("key-2", "other"))
		require.Equal(t, 1, e.events(idempotency.EventDuplicate))
	})
}

// A parked message runs on one replica when its successor comes to another: the successor's effect comes after.
func TestRacePredecessorOnAnotherReplica(t *testing.T) {
	for name, outcome := range map[string]error{"succeeds": nil, "fails": errBroken} {
		t.Run("predecessor "+name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				h.parked(t, "first", envelope.OrderingKeyHeader, "order")
				feeder, hold := h.held(t, outcome)
				row := h.leased(t, scope, time.Minute)
				ran := runs(feeder, row)
				hold.await(t)
				replica := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)))
				next := replica.deliver(newMessage("second", "2", envelope.OrderingKeyHeader, "order"))
				if !h.sqlite() {
					require.NoError(t, next()[0])
					require.Equal(t, 1, replica.events("parked:behind-parked"))
				}
				hold.release()
				require.NoError(t, <-ran)
				require.NoError(t, next()[0])
				for range 2 {
					h.feedNow(t, replica)
				}
				require.Equal(t, []string{"1", "2"}, h.values(t))
				require.Empty(t, h.rows(t))
			})
		})
	}
}

// The predecessor is settled between the successor's verdict and its parking: the successor's row is the oldest then, and runs.
func TestRacePredecessorGoneBeforeParking(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		h.parked(t, "first", envelope.OrderingKeyHeader, "order")
		parks := newBreakpoint(t, faultpoint.BeforeParking)
		e := h.newEngine(t, idempotency.Binding{Handler: effect}, withFault(parks.fault))
		next := e.deliver(newMessage("second", "2", envelope.OrderingKeyHeader, "order"))
		parks.await(t)
		other := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)))
		require.Equal(t, 1, h.runDue(t, other))
		parks.release()
		require.NoError(t, next()[0])
		require.Equal(t, 1, h.runDue(t, other))
		require.Equal(t, []string{"1", "2"}, h.values(t))
	})
}

// A feeder was paused for longer than its lease, and another has its row: whatever the first makes of it, the row is the other's,
// and the first leaves it at once.
func TestRaceLostParkedLease(t *testing.T) {
	for name, test := range map[string]struct {
		point    faultpoint.Point
		outcome  error
		failures int // with the one that parked it
	}{
		"success":   {faultpoint.BeforeClaim, nil, 1},
		"transient": {faultpoint.BeforeParking, errBroken, 2},
		"permanent": {faultpoint.BeforeDeadLetter, refusal{"no"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				h.parked(t, "key")
				pause := newBreakpoint(t, test.point)
				calls := 0
				paused := h.newEngine(t, idempotency.Binding{
					Retry: idempotency.Retry{InProcess: -1},
					Handler: failing(func(*message.Message) error {
						calls++
						return test.outcome
					})}, withFault(pause.fault), quiet)
				ran := runs(paused, h.leased(t, scope, time.Millisecond))
				pause.await(t)
				eventually(t, "the lease is over", func() bool {
					due, waits, err := h.Parking().NextDue(t.Context(), []string{scope})
					return err == nil && waits && due <= 0
				})
				others := h.leased(t, scope, time.Minute)
				pause.release()
				require.ErrorIs(t, <-ran, parking.ErrLeaseLost)
				require.Equal(t, 1, calls)
				attempt, err := h.Keys().Attempt(t.Context(), keystore.ID{Scope: scope, Key: "key"})
				require.NoError(t, err)
				require.Equal(t, test.failures, attempt.Failures, "a lost lease is no failure")
				require.Equal(t, 1, paused.events(idempotency.EventLeaseLost))
				require.Zero(t, h.effects(t))
				require.Equal(t, parking.Waiting, h.rows(t)[0].State)

				other := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)))
				require.NoError(t, other.RunParked(t.Context(), others))
				require.Equal(t, 1, h.effects(t))
				require.Empty(t, h.rows(t))
			})
		})
	}
}
