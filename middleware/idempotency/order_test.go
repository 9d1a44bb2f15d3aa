package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// ordered makes the n-th message of an ordering key.
func ordered(order string, n int) *message.Message {
	return newMessage(fmt.Sprintf("%s-%d", order, n), fmt.Sprintf("%s-%d", order, n), envelope.OrderingKeyHeader, order)
}

// route reads a subscription as Watermill's router does: a goroutine for each message, which loses their order.
func route(s *subscription, e *engine, n int) *sync.WaitGroup {
	var group sync.WaitGroup
	group.Go(func() {
		for range n {
			msg := <-s.out
			group.Go(func() {
				if e.Process(msg) == nil {
					msg.Ack()
				} else {
					msg.Nack()
				}
			})
		}
	})
	return &group
}

// Messages of one ordering key have their effects in the order of arrival, under concurrency, retries in the process, and other keys beside.
func TestOrderInTheProcess(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const keys, each = 4, 15
		var failed sync.Map
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(msg *message.Message) error {
			if _, again := failed.LoadOrStore(string(msg.Payload), true); !again && msg.Payload[len(msg.Payload)-1]%2 == 0 {
				return errBroken // every other message fails once
			}
			return nil
		})}, quiet)
		s := subscribe(t, idempotency.NewLanes())
		done := route(s, e, keys*each)
		for n := range each {
			for k := range keys {
				s.c <- ordered(fmt.Sprintf("order%d", k), n)
			}
		}
		done.Wait()
		require.Equal(t, keys*each, h.effects(t))
		h.requireOrder(t, keys, each)
	})
}

// requireOrder checks the order of the effects within each ordering key.
func (h *harness) requireOrder(t *testing.T, keys, each int) {
	t.Helper()
	values := h.values(t)
	for k := range keys {
		var got, want []string
		prefix := fmt.Sprintf("order%d-", k)
		for _, v := range values {
			if len(v) > len(prefix) && v[:len(prefix)] == prefix {
				got = append(got, v)
			}
		}
		for n := range each {
			want = append(want, fmt.Sprintf("%s%d", prefix, n))
		}
		require.Equal(t, want, got)
	}
}

// A parked message keeps its successors behind it, on every replica, until it is settled; then they run in their order.
func TestOrderBehindAParkedMessage(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var broken atomic.Bool
		broken.Store(true)
		b := idempotency.Binding{Retry: idempotency.Retry{InProcess: -1}, Handler: failing(func(msg *message.Message) error {
			if broken.Load() && string(msg.Payload) == "order0-0" {
				return errBroken
			}
			return nil
		})}
		one, two := h.newEngine(t, b), h.newEngine(t, b, on(h.open(t, 0)))
		one.acked(t, ordered("order0", 0))
		one.acked(t, ordered("order0", 1))
		two.acked(t, ordered("order0", 2)) // on another replica
		one.acked(t, ordered("order0", 3), ordered("other", 0))
		require.Equal(t, []string{"other-0"}, h.values(t), "another key's message is not held")
		rows := h.rows(t, parking.Waiting)
		require.Len(t, rows, 4)
		for i, row := range rows {
			require.Equal(t, fmt.Sprintf("order0-%d", i), row.Key)
			if i > 0 {
				require.Equal(t, "behind-parked", row.Reason)
				require.Zero(t, row.Attempts)
			}
		}
		// Copies of what waits are not needed, and are not parked again.
		one.acked(t, ordered("order0", 0), ordered("order0", 2))
		require.Len(t, h.rows(t), 4)
		require.Equal(t, 2, one.events(idempotency.EventWaiting))

		broken.Store(false)
		_, err := h.DB().ExecContext(t.Context(), `UPDATE parked SET due_at = first_at`)
		require.NoError(t, err)
		h.feed(t, one)
		h.feed(t, two)
		eventually(t, "all have run", func() bool { return len(h.rows(t)) == 0 })
		require.Equal(t, []string{"other-0", "order0-0", "order0-1", "order0-2", "order0-3"}, h.values(t))
		two.acked(t, ordered("order0", 4))
		require.Equal(t, 6, h.effects(t))
	})
}

// A completed duplicate just skips, also when a later message of its ordering key is parked.
func TestDuplicateIsNotHeldBehind(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Retry: idempotency.Retry{InProcess: -1}, Handler: failing(func(msg *message.Message) error {
			if string(msg.Payload) == "order0-1" {
				return errBroken
			}
			return nil
		})})
		e.acked(t, ordered("order0", 0), ordered("order0", 1), ordered("order0", 0))
		require.Equal(t, 1, e.events(idempotency.EventDuplicate))
		require.Len(t, h.rows(t), 1)
	})
}

// Under load, with failures that park, two replicas and their feeders, every key's effects are in order.
func TestOrderUnderParking(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const keys, each = 3, 12
		var failed sync.Map
		b := idempotency.Binding{Retry: idempotency.Retry{InProcess: -1, First: 1, Max: 1}, Handler: failing(func(msg *message.Message) error {
			if _, again := failed.LoadOrStore(string(msg.Payload), true); !again && msg.Payload[len(msg.Payload)-1]%3 == 0 {
				return errBroken
			}
			return nil
		})}
		one, two := h.newEngine(t, b, quiet), h.newEngine(t, b, on(h.open(t, 0)), quiet)
		s := subscribe(t, idempotency.NewLanes())
		done := route(s, one, keys*each)
		h.feed(t, one)
		h.feed(t, two)
		for n := range each {
			for k := range keys {
				s.c <- ordered(fmt.Sprintf("order%d", k), n)
			}
		}
		done.Wait()
		eventually(t, "all have run", func() bool { return h.effects(t) == keys*each })
		h.requireOrder(t, keys, each)
		require.Empty(t, h.rows(t, parking.Dead))
	})
}

// After a dead letter the binding goes on, or holds what follows until a person has decided.
func TestHoldPolicy(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		for _, hold := range []bool{false, true} {
			name := fmt.Sprintf("hold-%t", hold)
			var mended atomic.Bool
			e := h.newEngine(t, idempotency.Binding{Scope: "svc/" + name, Hold: hold, Handler: failing(func(msg *message.Message) error {
				if string(msg.Payload) == name+"-0" && !mended.Load() {
					return refusal{"no"}
				}
				return nil
			})})
			e.acked(t, ordered(name, 0), ordered(name, 1), ordered(name, 2))
			if !hold {
				require.Equal(t, []string{name + "-1", name + "-2"}, h.values(t))
				continue
			}
			require.Len(t, h.values(t), 2, "nothing of the held key has run")
			require.Zero(t, h.runDue(t, e), "nor is it due")
			mended.Store(true)
			dead, err := h.Parking().List(t.Context(), parking.Filter{Scope: e.scope, States: []parking.State{parking.Dead}})
			require.NoError(t, err)
			require.True(t, dead[0].Holds)
			h.redrive(t, dead[0].ID, "")
			for h.runDue(t, e) > 0 {
			}
			require.Equal(t, []string{"hold-false-1", "hold-false-2", name + "-0", name + "-1", name + "-2"}, h.values(t))
		}
	})
}

// An in-doubt message holds what follows, too, where the binding says so.
func TestHoldBehindDoubt(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Hold: true, External: external(func(context.Context, *message.Message, string, string) (any, error) {
			if calls.Add(1) == 1 {
				panic("in the middle")
			}
			return "done", nil
		})})
		e.acked(t, ordered("order0", 0), ordered("order0", 1))
		require.EqualValues(t, 1, calls.Load())
		require.Len(t, h.rows(t, parking.InDoubt), 1)
		require.Len(t, h.rows(t, parking.Waiting), 1)
		id := keystore.ID{Scope: scope, Key: "order0-0"}
		require.NoError(t, h.Keys().Resolve(t.Context(), id, keystore.Completed, nil, "test", "it was sent"))
		require.Equal(t, 1, h.runDue(t, e))
		require.Equal(t, []string{"order0-1"}, h.values(t))
	})
}
