package idempotency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
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

// Two replicas get the same keys at the same moment.
func TestF001RivalsForOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		keys, copies := 50, 20
		if h.sqlite() {
			copies = 8 // it has one writer: more copies only wait longer
		}
		slow := func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if !h.sqlite() {
				time.Sleep(5 * time.Millisecond) // a handler takes its time, and rivals wait for its claim
			}
			return effect(ctx, tx, msg)
		}
		b := idempotency.Binding{Handler: slow}
		replicas := []*engine{h.newEngine(t, b), h.newEngine(t, b, on(h.open(t, 0)))}

		var msgs []*message.Message
		for i := range keys * copies {
			msgs = append(msgs, newMessage(fmt.Sprintf("key-%d", i%keys), "100"))
		}
		rand.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
		var group sync.WaitGroup
		for i, msg := range msgs {
			group.Go(func() {
				key := msg.Metadata.Get("idempotency-key")
				if err := replicas[i%2].Process(msg); err != nil {
					t.Errorf("%s was handed back: %v", key, err)
				}
				// Whoever is acked is acked after the effect, winner and loser alike.
				if i%10 == 0 && h.key(t, scope, key).State != keystore.Completed && len(h.rows(t, parking.Waiting)) == 0 {
					t.Errorf("a copy of %s was acked before the effect", key)
				}
			})
		}
		group.Wait()
		h.feed(t, replicas[0])
		eventually(t, "nothing waits", func() bool { return len(h.rows(t)) == 0 })
		require.Equal(t, keys, h.effects(t))
		require.Equal(t, keys, h.count(t, `SELECT count(DISTINCT k) FROM effects`))
	})
}

// No snapshot ever shows an effect without its key or a key without its effect.
func TestF002EffectAndKeyAppearTogether(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const keys = 40
		lost := failEvery(faultpoint.Committed, 2)
		e := h.newEngine(t, idempotency.Binding{Handler: effect}, withFault(lost))

		observer := h.open(t, 2)
		stop, snapshots := make(chan struct{}), atomic.Int64{}
		var watching sync.WaitGroup
		watching.Go(func() {
			const apart = `SELECT (SELECT count(*) FROM effects e WHERE NOT EXISTS (SELECT 1 FROM processed_events p WHERE p.idempotency_key = e.k AND p.status = 'completed')) +
				(SELECT count(*) FROM processed_events p WHERE NOT EXISTS (SELECT 1 FROM effects e WHERE e.k = p.idempotency_key))`
			for {
				var n int
				if err := observer.DB().Get(&n, apart); err != nil || n != 0 {
					t.Errorf("%d effects and keys stand alone: %v", n, err)
					return
				}
				snapshots.Add(1)
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
		var msgs []*message.Message
		for i := range keys {
			msgs = append(msgs, newMessage(fmt.Sprintf("key-%d", i), "1"))
		}
		for _, err := range e.deliver(msgs...)() {
			require.NoError(t, err)
		}
		// Crashed after the commit, before the ack: the redelivery calls no handler.
		for _, msg := range msgs {
			e.acked(t, redelivered(msg))
		}
		close(stop)
		watching.Wait()
		require.Positive(t, snapshots.Load())
		require.Equal(t, keys, h.effects(t))
		require.Equal(t, keys, e.events(idempotency.EventCompleted))
		// A redelivery, and each commit whose answer was lost, was found to be a duplicate.
		require.Equal(t, keys+keys/2, e.events(idempotency.EventDuplicate))
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`), "a lost answer is no failure")
	})
}

// failEvery breaks every n-th pass of a point.
func failEvery(point faultpoint.Point, n int64) faultpoint.Hook {
	var passes atomic.Int64
	return func(_ context.Context, at faultpoint.Point) error {
		if at == point && passes.Add(1)%n == 0 {
			return errBroken
		}
		return nil
	}
}

// Two bindings take the same key on one topic; each has its own effect, and one's retries do not run the other again.
func TestF022TwoBindingsOneKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var ledgerCalls, mailCalls atomic.Int64
		ledger := h.newEngine(t, idempotency.Binding{Scope: "svc/ledger", Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			ledgerCalls.Add(1)
			return effect(ctx, tx, msg)
		}})
		mail := h.newEngine(t, idempotency.Binding{Scope: "svc/mail", Handler: failing(func(*message.Message) error {
			if mailCalls.Add(1) <= 2 {
				return errBroken
			}
			return nil
		})})
		const n = 10
		for i := range n {
			key := fmt.Sprintf("key-%d", i)
			ledger.acked(t, newMessage(key, "1"))
			mail.acked(t, newMessage(key, "1"), newMessage(key, "1"))
		}
		require.EqualValues(t, n, ledgerCalls.Load())
		require.EqualValues(t, n+2, mailCalls.Load())
		require.Equal(t, 2*n, h.effects(t))
		require.Equal(t, 2, h.effectsOf(t, "key-3"))

		refunds := h.newEngine(t, idempotency.Binding{Scope: "svc/refunds", Handler: effect})
		refunds.acked(t, newMessage("key-3", "1"))
		require.Equal(t, 3, h.effectsOf(t, "key-3"))
	})
}

// A copy that meets the uncommitted claim of another waits for its end, and then skips or takes over.
func TestF025LosingTheClaim(t *testing.T) {
	for name, outcome := range map[string]error{"commits": nil, "rolls back": errBroken} {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				hold := newBreakpoint(t, "handler")
				first := h.newEngine(t, idempotency.Binding{
					Retry: idempotency.Retry{InProcess: -1, First: time.Hour},
					Handler: failing(func(*message.Message) error {
						hold.hit()
						return outcome
					})})
				claiming := newBreakpoint(t, faultpoint.BeforeClaim)
				second := h.newEngine(t, idempotency.Binding{Handler: effect}, on(h.open(t, 0)), withFault(claiming.fault))

				one := first.deliver(newMessage("key", "1"))
				hold.await(t)
				two := second.deliver(newMessage("key", "1"))
				claiming.await(t)
				claiming.release()
				if !h.sqlite() {
					eventually(t, "the second claim waits for the first", func() bool { return h.lockWaits(t) > 0 })
				}
				hold.release()
				require.NoError(t, one()[0])
				require.NoError(t, two()[0])
				if outcome == nil {
					require.Equal(t, 1, second.events(idempotency.EventDuplicate))
				}
				// Whether the second took over, or found the first one's retry parked, the effect happens once.
				h.feedNow(t, second)
				require.Equal(t, 1, h.effects(t))
				require.Zero(t, second.events(idempotency.EventRetried), "the transaction of a lost claim is no failure")
				require.Empty(t, h.rows(t, parking.Dead))
			})
		})
	}
}

// lockWaits is how many sessions of the test's schema wait for a lock.
func (h *harness) lockWaits(t *testing.T) int {
	if h.Dialect() == "mysql" {
		// InnoDB's own table stands still while several tests ask it more often than ten times a second.
		return h.count(t, `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND command <> 'Sleep' AND id <> connection_id() AND time_ms > 200`)
	}
	return h.count(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = current_setting('application_name')`)
}

// feedNow makes every waiting row due and runs it.
func (h *harness) feedNow(t *testing.T, e *engine) {
	t.Helper()
	_, err := h.DB().ExecContext(t.Context(), `UPDATE parked SET due_at = first_at WHERE state = 'waiting'`)
	require.NoError(t, err)
	h.runDue(t, e)
}
