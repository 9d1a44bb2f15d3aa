package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// A dead letter keeps body and headers byte for byte over many cycles of failing and being sent back, and does not grow.
func TestF038DeadLetterKeepsEverything(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		body := make([]byte, 64<<10)
		random := rand.NewChaCha8([32]byte{1})
		_, _ = random.Read(body)
		more := []string{envelope.OrderingKeyHeader, "order", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "unicode", "Grüße, 世界", "nul", "a\x00b", "empty", ""}
		for i := range 6 {
			more = append(more, fmt.Sprintf("header-%d", i), strings.Repeat("v", 20*i))
		}
		msg := newMessage("key", "", more...)
		msg.Payload = body
		headers := maps.Clone(msg.Metadata)
		e := h.newEngine(t, idempotency.Binding{Handler: func(_ context.Context, _ *idempotency.Tx, msg *message.Message) (any, error) {
			if !bytes.Equal(body, msg.Payload) || !maps.Equal(headers, msg.Metadata) {
				return nil, errors.New("another message")
			}
			return nil, refusal{"no"}
		}}, quiet)
		e.acked(t, msg)
		first := h.dead(t)
		for range 10 {
			h.redrive(t, h.dead(t).ID, "")
			require.Equal(t, 1, h.runDue(t, e))
		}
		last := h.dead(t)
		require.Equal(t, body, last.Payload)
		require.Equal(t, map[string]string(headers), last.Metadata)
		require.Equal(t, first.UUID, last.UUID)
		require.Equal(t, "key", last.Key)
		require.Equal(t, "order", last.OrderingKey)
		require.Equal(t, topic, last.Topic)
		require.Equal(t, "no", last.Reason)
		require.Equal(t, first.ID, last.ID)
		require.Equal(t, first.FirstAt, last.FirstAt)
		require.Equal(t, first.Error, last.Error)
		require.Len(t, last.History, 10, "who sent it back, each time")
	})
}

// The text of an error is cut and may hold anything; its payload and its stack are not in it.
func TestF038ErrorTextIsBounded(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Retry: idempotency.Retry{Attempts: 1}, Handler: failing(func(msg *message.Message) error {
			if string(msg.Payload) == "panic" {
				panic(strings.Repeat("p", 10_000))
			}
			return errors.New(strings.Repeat("é\x00", 10_000))
		})}, quiet)
		e.acked(t, newMessage("panic", "panic"), newMessage("error", "error"))
		for _, row := range h.rows(t, parking.Dead) {
			require.LessOrEqual(t, len(row.Error), 2<<10)
			require.NotContains(t, row.Error, "goroutine")
		}
	})
}

// A dead letter that was sent back and succeeds completes its failed key and is gone; one whose effect is there is refused.
func TestRedriveCompletesTheKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		mended := false
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error {
			if !mended {
				return refusal{"no"}
			}
			return nil
		})}, quiet)
		e.acked(t, newMessage("key", "1"), newMessage("key", "other"))
		rows := h.rows(t, parking.Dead)
		require.Len(t, rows, 2)
		mended = true
		h.redrive(t, rows[0].ID, "")
		require.Equal(t, 1, h.runDue(t, e))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Equal(t, 1, h.effects(t))
		var refused *parking.Refusal
		require.ErrorAs(t, h.Parking().Redrive(t.Context(), rows[1].ID, "", parking.Action{By: "test"}), &refused)
	})
}

// A redriven message that fails transiently keeps its claim on the failed key while it waits.
func TestRedriveFailsTransiently(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outcome error = refusal{"no"}
		e := h.newEngine(t, idempotency.Binding{Retry: idempotency.Retry{InProcess: -1}, Handler: failing(func(*message.Message) error { return outcome })}, quiet)
		e.acked(t, newMessage("key", "1"))
		h.redrive(t, h.dead(t).ID, "")
		outcome = errBroken
		require.Equal(t, 1, h.runDue(t, e))
		require.True(t, h.rows(t, parking.Waiting)[0].Redriven)
		require.Equal(t, keystore.Failed, h.key(t, scope, "key").State)
		outcome = nil
		h.feedNow(t, e)
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Empty(t, h.rows(t))
	})
}
