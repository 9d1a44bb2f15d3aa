package dynamotx_test

import (
	"bytes"
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/middleware/envelope"
)

func itoa(n int) string { return strconv.Itoa(n) }

// letters is a plan with n messages of some bytes, of which every second has an identity of its own, anew in each plan.
func letters(n, bytesEach int) dynamotx.Plan {
	return func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		var w dynamotx.Writes
		for i := range n {
			body := bytes.Repeat([]byte{byte('a' + i)}, bytesEach)
			msg := message.NewMessage("", body)
			if i%2 == 1 {
				msg.UUID = envelope.NewUUID()
				msg.Metadata.Set(envelope.OrderingKeyHeader, "order-"+itoa(i))
				msg.Metadata.Set("colour", "blue")
			}
			w.Outgoing = append(w.Outgoing, dynamotx.Outgoing{Topic: "letters", Payload: msg})
		}
		return w, nil
	}
}

// The messages of one transaction are the same, and in the same order, whichever process publishes them, and whether it remembers them or not.
func TestOutgoingMessagesAreAlwaysTheSame(t *testing.T) {
	for name, size := range map[string]int{"in the key's item": 100, "in items of their own": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			b := newBell(t)
			h := b.handler(letters(4, size))
			var all [][]*message.Message
			for _, e := range []handlers.External{h.External(), h.External(), h.Forgetful(), {Call: h.Forgetful().Call, Record: h.External().Record}} {
				k := kitOf(t, e) // a database of its own, which knows nothing of the others' keys
				require.Equal(t, handlertest.Completed, k.Deliver("bells.ring", key, []byte("{}")))
				all = append(all, k.Published("letters"))
			}
			for _, published := range all {
				require.Len(t, published, 4)
				for i, msg := range published {
					require.Equal(t, all[0][i].UUID, msg.UUID)
					require.Equal(t, all[0][i].Metadata, msg.Metadata)
					require.Equal(t, bytes.Repeat([]byte{byte('a' + i)}, size), []byte(msg.Payload))
				}
				require.Equal(t, "order-1", published[1].Metadata.Get(envelope.OrderingKeyHeader))
				require.Equal(t, "blue", published[3].Metadata.Get("colour"))
			}
		})
	}
}

// A key's item that somebody removed between call and record leaves the message to a person: its messages are lost.
func TestRecordWithoutTheKey(t *testing.T) {
	b := newBell(t)
	h := b.handler(letters(1, 1))
	e := h.Forgetful()
	commit := e.Call
	e.Call = func(ctx context.Context, msg *message.Message, key handlers.Key) (any, error) {
		result, err := commit(ctx, msg, key)
		b.Clear(b.db.Name("keys"))
		return result, err
	}
	k := kitOf(t, e)
	require.Equal(t, handlertest.InDoubt, k.Deliver("bells.ring", key, []byte("{}")))
	k.WantPublished("letters", 0)
}
