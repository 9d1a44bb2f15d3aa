package idempotency_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

// A message waits for its turn, whatever ends its predecessor: an ack or a nack by anybody, the engine or a middleware before it.
func TestLanesTurnEndsByWhoeverAcks(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		lanes := idempotency.NewLanes()
		msgs := ticket(t, lanes, ordered("order", 0), ordered("order", 1), ordered("order", 2), ordered("other", 0))
		last := e.deliver(msgs[2])
		middle := e.deliver(msgs[1])
		e.acked(t, msgs[3])
		msgs[3].Ack()
		require.Equal(t, []string{"other-0"}, h.values(t), "both wait for the first, the other key does not")
		msgs[0].Ack() // returned early: the engine never saw it
		require.NoError(t, middle()[0])
		msgs[1].Ack()
		require.NoError(t, last()[0])
		msgs[2].Ack()
		require.Equal(t, []string{"other-0", "order-1", "order-2"}, h.values(t))
	})
}

// What is handed back takes its successors along, unrun, until it returns; they never run before it.
func TestLanesHandBackTakesSuccessorsAlong(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		s := subscribe(t, idempotency.NewLanes())
		first, second, third := s.pass(ordered("order", 0)), s.pass(ordered("order", 1)), s.pass(ordered("order", 2))
		waiting := e.deliver(second, third)
		first.Nack()
		for i, err := range waiting() {
			require.Error(t, err, "message %d", i+1)
		}
		second.Nack()
		third.Nack()
		require.Zero(t, h.effects(t))

		// The second comes first: it must go back once more.
		again := s.pass(second.Copy())
		require.Error(t, e.Process(again))
		again.Nack()
		// Then the first, and the others behind it.
		returned := s.pass(first.Copy())
		successor := s.pass(second.Copy())
		behind := e.deliver(successor)
		e.acked(t, returned)
		returned.Ack()
		require.NoError(t, behind()[0])
		successor.Ack()
		require.Equal(t, []string{"order-0", "order-1"}, h.values(t))
	})
}
