package dynamotx_test

import (
	"bytes"
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

func itoa(n int) string { return strconv.Itoa(n) }

// letters is a plan with n messages of some bytes, of which every second has an identity and an order of its own, anew in each plan.
func letters(n, bytesEach int) dynamotx.Plan {
	return func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		var w dynamotx.Writes
		for i := range n {
			msg := message.NewMessage("", bytes.Repeat([]byte{byte('a' + i)}, bytesEach))
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

// records are all that wait in the outbox table.
func (b *bell) records() []outbox.Record {
	b.t.Helper()
	records, err := b.db.Outbox().List(b.t.Context(), false, 1000)
	require.NoError(b.t, err)
	return records
}

// The messages of one transaction are there once, in their order, however often and by whomever the message is run again.
func TestOutgoingMessagesAreRecordedOnce(t *testing.T) {
	for name, size := range map[string]int{"in the record": 100, "in items of their own": 300 << 10} {
		t.Run(name, func(t *testing.T) {
			b := newBell(t)
			for range 3 {
				k := b.kit(letters(4, size)) // a database of its own, which knows nothing of the others' keys
				require.Equal(t, handlertest.Completed, k.Deliver("bells.ring", key, []byte("{}")))
			}
			records := b.records()
			require.Len(t, records, 4)
			for i, r := range records {
				require.Equal(t, bytes.Repeat([]byte{byte('a' + i)}, size), r.Payload)
				require.Equal(t, handlertest.Service+"/bells", r.Scope)
				require.Equal(t, key, r.ParentKey)
			}
			require.Equal(t, envelope.DeriveUUID(handlertest.Service+"/bells", key, 2), records[2].UUID, "as of a transactional handler")
			require.Equal(t, records[2].UUID, records[2].Key)
			require.Equal(t, "order-1", records[1].OrderingKey)
			require.Equal(t, "blue", records[3].Metadata["colour"])
		})
	}
}

// What the author leaves out is taken from the handled message, and the trace goes on.
func TestOutgoingMessagesFollowTheHandledOne(t *testing.T) {
	b := newBell(t)
	handled := message.NewMessage("m", []byte("{}"))
	handled.Metadata.Set(envelope.OrderingKeyHeader, "account-7")
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	later := message.NewMessage("", nil)
	later.Metadata.Set(envelope.DeliverAtHeader, time.Now().Add(time.Hour).Format(time.RFC3339))
	e := b.handler(planOf(dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "letters", Payload: 1}, {Topic: "letters", Payload: later}}})).External()
	_, err := e.Call(trace.ContextWithSpanContext(t.Context(), span), handled, handlers.NewKey(handlertest.Service+"/bells", key))
	require.NoError(t, err)
	records := b.records()
	require.Len(t, records, 2)
	require.Equal(t, "account-7", records[0].OrderingKey)
	require.Contains(t, records[0].Metadata["traceparent"], span.TraceID().String())
	require.WithinDuration(t, time.Now().Add(time.Hour), records[1].DeliverAt, time.Minute)
	s, err := b.db.Outbox().Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Pending)
	require.EqualValues(t, 1, s.Delayed)
}

// A transaction that does not commit leaves no message, and one that is planned anew leaves those of the plan that committed.
func TestMessagesOfAPlanThatDidNotCommit(t *testing.T) {
	b := newBell(t)
	plans := 0
	e := b.handler(func(context.Context, dynamotx.Reader, *message.Message, handlers.Key) (dynamotx.Writes, error) {
		plans++
		w := dynamotx.Writes{Outgoing: []dynamotx.Outgoing{{Topic: "letters", Payload: plans}}}
		if plans < 3 {
			w.Items = []types.TransactWriteItem{b.ring("attribute_exists(never)")}
		}
		return w, nil
	}).External()
	_, err := call(t, e)
	require.NoError(t, err)
	records := b.records()
	require.Len(t, records, 1)
	require.Equal(t, "3", string(records[0].Payload))
}

// Messages and writes share the bounds of one transaction.
func TestMessagesCountInTheTransaction(t *testing.T) {
	b := newBell(t)
	outgoing := func(n, size int) (list []dynamotx.Outgoing) {
		for range n {
			list = append(list, dynamotx.Outgoing{Topic: "letters", Payload: message.NewMessage("", make([]byte, size))})
		}
		return list
	}
	for says, w := range map[string]dynamotx.Writes{
		"101 writes": {Items: b.puts(50, 1), Outgoing: outgoing(50, 1)},
		"4194304":    {Outgoing: outgoing(5, 900<<10)},
		"outbox":     {Items: []types.TransactWriteItem{{Delete: &types.Delete{TableName: aws.String(b.db.Name("outbox")), Key: dynamotx.Item{}}}}},
	} {
		_, err := call(t, b.handler(planOf(w)).External())
		var permanent *handlers.PermanentError
		require.ErrorAs(t, err, &permanent)
		require.Contains(t, permanent.Text, says)
	}
	require.Zero(t, b.Count(dynamotest.Transact))
	_, err := call(t, b.handler(planOf(dynamotx.Writes{Items: b.puts(49, 1), Outgoing: outgoing(50, 1)})).External())
	require.NoError(t, err)
	require.Len(t, b.records(), 50)
}

// ordered is a message of an ordering key.
func ordered(orderingKey string) *message.Message {
	msg := message.NewMessage("", nil)
	msg.Metadata.Set(envelope.OrderingKeyHeader, orderingKey)
	return msg
}
