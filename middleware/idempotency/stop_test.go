package idempotency_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// A stop lets the running finish on a context that is alive, although their broker's contexts are dead; it hands back
// who waits, and after the restart every effect and every event is there once.
func TestF033StopFinishesOrHandsBack(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const running, queued = 4, 20
		slots := running
		if h.sqlite() {
			slots = 1 // one writer, one transaction
		}
		var entered atomic.Int64
		finish := make(chan struct{})
		publishing := func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			entered.Add(1)
			select {
			case <-finish:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if err := tx.Publish(ctx, "done", tx.Key()); err != nil {
				return nil, err
			}
			return effect(ctx, tx, msg)
		}
		e := h.newEngine(t, idempotency.Binding{Concurrency: slots, Handler: publishing})
		broker, closeBroker := context.WithCancel(t.Context())
		var msgs []*message.Message
		for i := range running + queued {
			msg := newMessage(fmt.Sprintf("key-%d", i), "1")
			msg.SetContext(broker)
			msgs = append(msgs, msg)
		}
		wait := e.deliver(msgs...)
		eventually(t, "all slots run", func() bool {
			return int(entered.Load()) == slots && e.events(idempotency.EventReceived) == running+queued
		})
		closeBroker() // as Watermill's router does, at once
		e.Stop()
		eventually(t, "the waiting are handed back", func() bool { return e.events(idempotency.EventHandedBack) == running+queued-slots })
		close(finish)
		require.NoError(t, e.Wait(t.Context()))
		var finished int
		for _, err := range wait() {
			if err == nil {
				finished++
			}
		}
		require.Equal(t, slots, finished)
		require.Equal(t, slots, h.effects(t))
		require.Zero(t, h.count(t, `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`))
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`), "a stop counts no attempt")
		require.Error(t, e.Process(newMessage("late", "1")), "nobody enters any more")

		restarted := h.newEngine(t, idempotency.Binding{Handler: publishing})
		for _, msg := range msgs {
			restarted.acked(t, redelivered(msg))
		}
		require.Equal(t, running+queued, h.effects(t))
		require.Equal(t, running+queued, h.count(t, `SELECT count(DISTINCT message_uuid) FROM outbox`))
		require.Len(t, h.outgoing(t), running+queued)
	})
}

// When the grace is over the running handlers are cut off, roll back and are handed back: no attempt, no suspect, no key is left.
func TestF033GraceIsOver(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		entered := make(chan struct{})
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if _, err := effect(ctx, tx, msg); err != nil {
				return nil, err
			}
			close(entered)
			<-ctx.Done()
			return nil, refusal{"a handler that is cut off may say anything"}
		}})
		wait := e.deliver(redelivered(newMessage("key", "1")))
		await(t, entered, "the handler runs")
		e.Stop()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, e.Wait(over), context.Canceled)
		require.Error(t, wait()[0])
		require.Zero(t, h.effects(t))
		require.Empty(t, h.rows(t))
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`))
		require.Equal(t, keystore.Absent, h.key(t, scope, "key").State)
	})
}

// Who waits for a retry, for its turn, or for a key's lease is handed back at once.
func TestF033WaitingIsHandedBack(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{
			Retry: idempotency.Retry{InProcess: time.Hour},
			Handler: failing(func(*message.Message) error {
				calls.Add(1)
				return errBroken
			})})
		other := h.newEngine(t, idempotency.Binding{Scope: "svc/mail", Retry: idempotency.Retry{InProcess: time.Hour}, External: external(nothing)})
		_, err := h.Keys().Acquire(t.Context(), "somebody", []keystore.Claim{{ID: keystore.ID{Scope: "svc/mail", Key: "key"}}}, time.Hour)
		require.NoError(t, err)

		first, second := newMessage("one", "1", envelope.OrderingKeyHeader, "order"), newMessage("two", "1", envelope.OrderingKeyHeader, "order")
		lanes := idempotency.NewLanes()
		ticketed := ticket(t, lanes, first, second)
		retrying := e.deliver(ticketed...)
		held := other.deliver(newMessage("key", "1"))
		eventually(t, "it is retried", func() bool { return calls.Load() >= 2 })
		began := time.Now()
		e.Stop()
		other.Stop()
		for _, err := range append(retrying(), held()...) {
			require.Error(t, err)
		}
		require.Less(t, time.Since(began), patience)
		for _, msg := range ticketed {
			msg.Nack()
		}
	})
}

// The values of the delivery's context reach the handler, its end does not.
func TestHandlerContext(t *testing.T) {
	type key struct{}
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Timeout: time.Hour, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			require.Equal(t, "value", ctx.Value(key{}))
			require.Equal(t, "value", msg.Context().Value(key{}))
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Greater(t, time.Until(deadline), 50*time.Minute, "the broker's deadline is not the handler's")
			return effect(ctx, tx, msg)
		}})
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Minute)
		defer cancel()
		msg := newMessage("key", "1")
		msg.SetContext(ctx)
		e.acked(t, msg)
		require.Equal(t, 1, h.effects(t))
	})
}
