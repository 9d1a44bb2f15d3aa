package idempotency_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// A result is kept with the key, byte for byte, and a duplicate gets it.
func TestResultIsThereForTheDuplicate(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		raw := json.RawMessage(`{"z": 1,  "a": "<é>", "z": 2}`)
		var got []keystore.Record
		e := h.newEngine(t, idempotency.Binding{Handler: func(_ context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if string(msg.Payload) == "set" {
				tx.SetResult(raw)
				return nil, nil
			}
			return raw, nil
		}}, func(c *idempotency.Config) {
			c.OnDuplicate = func(_ context.Context, msg *message.Message, record keystore.Record) {
				require.Equal(t, "key-"+string(msg.Payload), record.Key)
				got = append(got, record)
			}
		})
		for _, how := range []string{"set", "returned"} {
			e.acked(t, newMessage("key-"+how, how), newMessage("key-"+how, how))
			require.Equal(t, string(raw), string(h.key(t, scope, "key-"+how).Result))
		}
		require.Len(t, got, 2)
		require.Equal(t, string(raw), string(got[0].Result))
		require.Equal(t, keystore.Completed, got[1].State)
		require.Equal(t, "test", got[1].Owner)
	})
}

// A result that cannot be kept is a permanent failure: the same handler would make it again.
func TestResultThatCannotBeKept(t *testing.T) {
	results := map[string]struct {
		result any
		reason string
	}{
		"large":      {strings.Repeat("x", keystore.MaxResult), "result-too-large"},
		"no json":    {json.RawMessage(`{"half":`), "result-not-json"},
		"empty raw":  {json.RawMessage{}, "result-not-json"},
		"not utf8":   {json.RawMessage("\"\xff\""), "result-not-json"},
		"a channel":  {make(chan int), "result-not-json"},
		"just right": {strings.Repeat("x", keystore.MaxResult-2), ""},
	}
	eachStore(t, func(t *testing.T, h *harness) {
		for name, test := range results {
			var calls atomic.Int64
			e := h.newEngine(t, idempotency.Binding{Scope: "svc/" + name, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				calls.Add(1)
				if _, err := effect(ctx, tx, msg); err != nil {
					return nil, err
				}
				return test.result, nil
			}})
			e.acked(t, newMessage("key", "1"))
			require.EqualValues(t, 1, calls.Load(), name)
			if test.reason == "" {
				require.Equal(t, keystore.Completed, h.key(t, e.scope, "key").State)
			} else {
				require.Equal(t, 1, e.events(idempotency.EventKind("dead_letter:"+test.reason)), name)
			}
		}
		require.Equal(t, 1, h.effects(t))
	})
}
