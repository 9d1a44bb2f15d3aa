package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// A transient failure is not remembered as done.
func TestF026TransientFailureRunsAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error {
			if calls.Add(1) == 1 {
				return errBroken
			}
			return nil
		})})
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 1, h.effects(t), "the failed attempt's row was rolled back")
		require.Equal(t, 1, e.events(idempotency.EventRetried))
	})
}

// A business refusal is the outcome: the duplicate does not ask again.
func TestF026PermanentFailureIsRemembered(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error {
			calls.Add(1)
			return fmt.Errorf("charge: %w", handlers.Permanent("card-declined", "insufficient funds"))
		})})
		e.acked(t, newMessage("key", "1"), newMessage("key", "1"))
		require.EqualValues(t, 1, calls.Load())
		require.Zero(t, h.effects(t))
		row := h.dead(t)
		require.Equal(t, "card-declined", row.Reason)
		require.Equal(t, "permanent", row.Class)
		require.Contains(t, row.Error, "insufficient funds")
		require.Equal(t, keystore.Failed, h.key(t, scope, "key").State)
		require.Equal(t, 1, e.events(idempotency.EventRejected))
	})
}

// Attempts are counted apart from the transactions that roll back, over redeliveries and replicas; the limit makes a dead letter.
func TestAttemptsSurviveRollback(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		always := idempotency.Binding{
			Retry:   idempotency.Retry{Attempts: 3, InProcess: -1},
			Handler: failing(func(*message.Message) error { return errBroken }),
		}
		one, two := h.newEngine(t, always), h.newEngine(t, always, on(h.open(t, 0)))
		one.acked(t, newMessage("key", "1"))
		attempt, err := h.Keys().Attempt(t.Context(), keystore.ID{Scope: scope, Key: "key"})
		require.NoError(t, err)
		require.Equal(t, 1, attempt.Failures)
		require.Equal(t, errBroken.Error(), attempt.LastError)
		require.False(t, attempt.NextAt.IsZero())
		require.Equal(t, 1, h.rows(t, parking.Waiting)[0].Attempts)

		h.feedNow(t, two)
		require.Equal(t, 2, h.rows(t, parking.Waiting)[0].Attempts)
		h.feedNow(t, one)
		row := h.dead(t)
		require.Equal(t, "attempts-exhausted", row.Reason)
		require.Equal(t, 3, row.Attempts)
		require.Equal(t, keystore.Failed, h.key(t, scope, "key").State)
		require.Zero(t, h.effects(t))
	})
}

func TestF031HandlerPanics(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var first atomic.Bool
		e := h.newEngine(t, idempotency.Binding{
			Retry: idempotency.Retry{Attempts: 3},
			Handler: failing(func(msg *message.Message) error {
				switch string(msg.Payload) {
				case "once":
					if first.CompareAndSwap(false, true) {
						panic("first try")
					}
				case "always":
					panic(errors.New("always"))
				case "nil":
					panic(nil) //nolint:govet // what is meant
				case "goexit":
					runtime.Goexit()
				}
				return nil
			})})
		msgs := []*message.Message{newMessage("once", "once"), newMessage("always", "always"), newMessage("nil", "nil"), newMessage("goexit", "goexit")}
		for i := range 20 {
			msgs = append(msgs, newMessage(fmt.Sprintf("good-%d", i), "good"))
		}
		began := time.Now()
		for _, err := range e.deliver(msgs...)() {
			require.NoError(t, err)
		}
		require.Equal(t, 21, h.effects(t))
		require.Equal(t, 1, h.effectsOf(t, "once"))
		require.Less(t, time.Since(began), 20*time.Second, "the claim is free at once")
		reasons := map[string]string{}
		for _, row := range h.rows(t) {
			require.Equal(t, parking.Dead, row.State)
			require.Equal(t, 3, row.Attempts)
			reasons[row.Key] = row.Reason
		}
		require.Equal(t, map[string]string{"always": "panic", "nil": "panic", "goexit": "attempts-exhausted"}, reasons)
	})
}

// Retries come first, the dead letter after the last of them; there is one order and nobody can turn it round.
func TestF036RetryBeforeDeadLetter(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{
			Retry: idempotency.Retry{Attempts: 4},
			Handler: failing(func(*message.Message) error {
				if calls.Add(1) <= 2 {
					return errBroken
				}
				return nil
			})})
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 3, calls.Load())
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}

// The dead letter is written although the handler's context is dead, and nothing is acked before it is durable.
func TestF037DeadLetterOnADeadContext(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		broken := failAt(faultpoint.BeforeDeadLetter, 2, errBroken)
		e := h.newEngine(t, idempotency.Binding{
			Timeout: 20 * time.Millisecond, Retry: idempotency.Retry{Attempts: 1},
			Handler: func(ctx context.Context, _ *idempotency.Tx, _ *message.Message) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}, withFault(broken))
		dead, cancel := context.WithCancel(t.Context())
		msg := newMessage("key", "1")
		msg.SetContext(dead)
		wait := e.deliver(msg)
		require.NoError(t, wait()[0])
		cancel()
		require.Equal(t, "deadline", h.dead(t).Reason)
		require.Equal(t, 2, e.events(idempotency.EventUnavailable), "each failed burial is counted")
	})
}

// As long as the dead letter cannot be written the message is not acked; on a stop it goes back.
func TestF037NoAckWithoutTheDeadLetter(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{
			Handler: failing(func(*message.Message) error { return refusal{"no"} }),
		}, withFault(failAt(faultpoint.BeforeDeadLetter, -1, errBroken)))
		wait := e.deliver(newMessage("key", "1"))
		eventually(t, "several burials fail", func() bool { return e.events(idempotency.EventUnavailable) >= 3 })
		e.Stop()
		require.Error(t, wait()[0])
		require.Empty(t, h.rows(t))
		require.Equal(t, keystore.Absent, h.key(t, scope, "key").State)

		healthy := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error { return refusal{"no"} })})
		healthy.acked(t, redelivered(newMessage("key", "1")))
		require.Equal(t, "no", h.dead(t).Reason)
	})
}

// A parked message has one attempt for each time that it is due: its lease is not held while it waits again.
func TestParkedMessageWaitsInParking(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		h.parked(t, "key")
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Retry: idempotency.Retry{InProcess: time.Hour}, Handler: failing(func(*message.Message) error {
			calls.Add(1)
			return errBroken
		})})
		require.NoError(t, e.RunParked(t.Context(), h.leased(t, scope, time.Minute)))
		require.EqualValues(t, 1, calls.Load())
		rows := h.rows(t, parking.Waiting)
		require.Len(t, rows, 1)
		require.Equal(t, 2, rows[0].Attempts)
		require.True(t, rows[0].DueAt.After(rows[0].LastAt))
	})
}

// A retry waits as a parked row, which is durable before the ack. When that ack is lost, again and again, the copies that come back find the
// row: there is one of it, its attempts go on counting, and its effect happens once.
func TestF039AckLostAfterParking(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var mended atomic.Bool
		e := h.newEngine(t, idempotency.Binding{
			Retry: idempotency.Retry{InProcess: -1, Attempts: 30},
			Handler: failing(func(*message.Message) error {
				if mended.Load() {
					return nil
				}
				return errBroken
			}),
		})
		for lost := range 10 {
			e.acked(t, redelivered(newMessage("key", "1")))
			rows := h.rows(t)
			require.Len(t, rows, 1, "the copy adds none")
			require.Equal(t, parking.Waiting, rows[0].State)
			require.Equal(t, "key", rows[0].Key)
			require.Equal(t, lost+1, rows[0].Attempts, "neither lost nor begun again")
			if lost < 9 {
				h.feedNow(t, e)
			}
		}
		require.Zero(t, h.effects(t))
		mended.Store(true)
		h.feedNow(t, e)
		e.acked(t, redelivered(newMessage("key", "1")))
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}

// RetryAfter wins over the backoff and is no retry in the process when it asks for long.
func TestRetryAfter(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error {
			return handlers.RetryAfter(40*time.Minute, errBroken)
		})})
		e.acked(t, newMessage("key", "1"))
		rows := h.rows(t, parking.Waiting)
		require.Len(t, rows, 1)
		require.InDelta(t, 40*time.Minute, rows[0].DueAt.Sub(rows[0].LastAt), float64(time.Second))
		require.Equal(t, 1, rows[0].Attempts)
	})
}

// Errors that are several things at once are settled by the gravest word of the handler; the words of other stores are not the engine's.
func TestErrorsOfSeveralClasses(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		for name, test := range map[string]struct {
			err    error
			reason string
		}{
			"permanent and retry":        {errors.Join(handlers.RetryAfter(time.Hour, errBroken), handlers.Permanent("final", "no")), "final"},
			"permanent without a code":   {handlers.Permanent("", "no"), "permanent"},
			"another store's commit":     {fmt.Errorf("their store: %w", keystore.ErrOutcomeUnknown), "attempts-exhausted"},
			"another store's lease":      {fmt.Errorf("their store: %w", keystore.ErrLeaseLost), "attempts-exhausted"},
			"another store's parked row": {fmt.Errorf("their store: %w", parking.ErrLeaseLost), "attempts-exhausted"},
			"another store's result":     {fmt.Errorf("their store: %w", keystore.ErrResultTooLarge), "attempts-exhausted"},
			"a foreign cancelled call":   {context.Canceled, "attempts-exhausted"},
		} {
			var calls atomic.Int64
			e := h.newEngine(t, idempotency.Binding{
				Scope: "svc/" + name, Retry: idempotency.Retry{Attempts: 2},
				Handler: func(context.Context, *idempotency.Tx, *message.Message) (any, error) {
					calls.Add(1)
					return nil, test.err
				}})
			e.acked(t, newMessage("key", "1"))
			require.Equal(t, 1, e.events(idempotency.EventKind("dead_letter:"+test.reason)), name)
			require.LessOrEqual(t, calls.Load(), int64(2), name)
		}
	})
}
