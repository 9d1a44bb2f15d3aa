package idempotency_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

const resent = idempotency.EventKind("duplicate:resent")

// confirming is a handler that leaves one row and publishes two messages, which differ from run to run.
func confirming(runs *atomic.Int64) idempotency.Handler {
	return func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		if _, err := effect(ctx, tx, msg); err != nil {
			return nil, err
		}
		n := runs.Add(1)
		return "done", tx.Publish(ctx, "confirmed", map[string]int64{"run": n}, map[string]int64{"second": n})
	}
}

// "It was already done": a duplicate publishes the first run's messages again, byte for byte and under their same identities, so that a
// consumer that has them removes the copies. The handler does not run.
func TestResendPublishesTheFirstRunsMessagesAgain(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var runs atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: confirming(&runs), Resend: true})
		e.acked(t, newMessage("a", "1", "ordering-key", "o"))
		first := h.outgoing(t)
		require.Len(t, first, 2)

		e.acked(t, newMessage("a", "1"))
		e.acked(t, redelivered(newMessage("a", "1")))
		all := h.outgoing(t)
		require.Len(t, all, 6)
		require.Equal(t, first, all[2:4])
		require.Equal(t, first, all[4:6])
		require.Equal(t, 2, e.events(resent))
		require.Equal(t, 2, e.events(idempotency.EventDuplicate))
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, 1, h.effects(t))

		// The next service takes them once.
		next := h.newEngine(t, idempotency.Binding{Scope: "svc/next", Handler: effect})
		for _, o := range all {
			next.acked(t, o.message(t))
		}
		require.Equal(t, 1+2, h.effects(t))

		// Another payload is no duplicate, and gets no confirmation.
		e.acked(t, newMessage("a", "other"))
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
		require.Len(t, h.outgoing(t), 6)
	})
}

// Without the setting nothing is kept, and a duplicate is skipped, also when the setting comes later.
func TestResendIsNotTheDefault(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var runs atomic.Int64
		plain := h.newEngine(t, idempotency.Binding{Handler: confirming(&runs)})
		plain.acked(t, newMessage("a", "1"), newMessage("a", "1"))
		e := h.newEngine(t, idempotency.Binding{Handler: confirming(&runs), Resend: true})
		e.acked(t, newMessage("a", "1"))
		require.Len(t, h.outgoing(t), 2)
		require.Zero(t, plain.events(resent)+e.events(resent))
		require.Equal(t, 2, plain.events(idempotency.EventDuplicate)+e.events(idempotency.EventDuplicate))
		_, err := h.Keys().Resend(t.Context(), keystore.ID{Scope: scope, Key: "a"}, "test", "")
		require.Error(t, err)
		require.EqualValues(t, 1, runs.Load())
	})
}

// An external handler's confirmation is that of Record; the call is not made again.
func TestResendOfAnExternalHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Resend: true, External: &idempotency.External{
			Call: func(context.Context, *message.Message, string, string) (any, error) { return calls.Add(1), nil },
			Record: func(ctx context.Context, tx *idempotency.Tx, _ *message.Message, result json.RawMessage) error {
				return tx.Publish(ctx, "captured", result)
			},
		}})
		e.acked(t, newMessage("a", "1"), newMessage("a", "1"))
		all := h.outgoing(t)
		require.Len(t, all, 2)
		require.Equal(t, all[0], all[1])
		require.Equal(t, "1", string(all[0].Payload))
		require.EqualValues(t, 1, calls.Load())
		require.Equal(t, 1, e.events(resent))
	})
}

// A duplicate that waited in parking gets its answer, and its row goes, in one transaction.
func TestResendForAParkedDuplicate(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var runs atomic.Int64
		at := idempotency.Retry{InProcess: -1, First: time.Millisecond}
		broken := h.newEngine(t, idempotency.Binding{Retry: at, Handler: failing(func(*message.Message) error { return errBroken })})
		broken.acked(t, newMessage("a", "1"))
		copied := h.rows(t)[0]
		e := h.newEngine(t, idempotency.Binding{Handler: confirming(&runs), Resend: true, Retry: at})
		eventually(t, "the row is due", func() bool { return h.runDue(t, e) == 1 })
		require.Len(t, h.outgoing(t), 2)
		require.Empty(t, h.rows(t))

		copied.ID = 0
		require.NoError(t, h.Parking().Park(t.Context(), []parking.Row{copied}))
		eventually(t, "the copy is due", func() bool { return h.runDue(t, e) == 1 })
		all := h.outgoing(t)
		require.Len(t, all, 4)
		require.Equal(t, all[:2], all[2:])
		require.Empty(t, h.rows(t))
		require.EqualValues(t, 1, runs.Load())
	})
}

// Where the duplicate's messages cannot be written, it is not acked before they are.
func TestResendSurvivesALostCommit(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var runs atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: confirming(&runs), Resend: true})
		e.acked(t, newMessage("a", "1"))
		_, err := h.DB().ExecContext(t.Context(), `ALTER TABLE outbox RENAME TO outbox_away`)
		require.NoError(t, err)
		settled := e.deliver(newMessage("a", "1"))
		eventually(t, "the write fails", func() bool { return e.events(idempotency.EventRetried)+e.events(idempotency.EventUnavailable) > 0 })
		_, err = h.DB().ExecContext(t.Context(), `ALTER TABLE outbox_away RENAME TO outbox`)
		require.NoError(t, err)
		require.Equal(t, []error{nil}, settled())
		require.Len(t, h.outgoing(t), 4)
		require.EqualValues(t, 1, runs.Load())
	})
}

// Hints of keys elsewhere know no messages.
func TestResendNeedsTheKeysInTheDatabase(t *testing.T) {
	t.Parallel()
	h := onSQLite(t)
	b := idempotency.Binding{Scope: scope, Handler: effect, Resend: true}
	_, err := idempotency.New(idempotency.Config{Binding: b, Keys: h.Keys(), Parking: h.Parking(), Elsewhere: struct{ keystore.Elsewhere }{}})
	require.ErrorContains(t, err, "Resend")
	b.Handler = nil
	_, err = idempotency.NewFlow(idempotency.FlowConfig{
		Config:    idempotency.Config{Binding: b, Keys: h.Keys(), Parking: h.Parking()},
		Transform: func(context.Context, *idempotency.Outputs, *message.Message) error { return nil },
	})
	require.ErrorContains(t, err, "resend")
}
