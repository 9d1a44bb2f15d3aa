package rabbitbroker_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Every type of header that a foreign producer may send becomes text or is named apart, and none stops a delivery.
func TestF017HeaderTypes(t *testing.T) {
	t.Parallel()
	text := map[string]struct {
		value any
		want  string
	}{
		"string": {"v", "v"}, "empty": {"", ""}, "utf8": {"żółw", "żółw"}, "bytes": {[]byte("k-2"), "k-2"},
		"int8": {int8(-8), "-8"}, "uint8": {uint8(200), "200"}, "int16": {int16(-16), "-16"}, "int32": {int32(32), "32"},
		"int64": {int64(11497), "11497"}, "float32": {float32(0.1), "0.1"}, "float64": {1e21, "1e+21"},
		"time":    {time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05Z"},
		"decimal": {amqp.Decimal{Scale: 2, Value: 1234}, "12.34"}, "decimal-small": {amqp.Decimal{Scale: 3, Value: 7}, "0.007"},
		"decimal-minus": {amqp.Decimal{Scale: 2, Value: -5}, "-0.05"}, "decimal-whole": {amqp.Decimal{Value: 5}, "5"},
		"x-request-id":     {"a producer's own", "a producer's own"},
		envelope.KeyHeader: {int64(11497), "11497"},
	}
	apart := map[string]struct {
		value any
		kind  string
	}{
		"null": {nil, "null"}, "bool": {true, "bool"}, "table": {amqp.Table{"a": int32(1)}, "table"},
		"array": {[]any{"a", int32(1)}, "array"}, "no-utf8": {[]byte("\xff\xfe"), "bytes"}, "no-utf8-text": {"\xff", "bytes"},
	}
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			b := open(t, config(server.URL, queueType))
			topic := testenv.Name(t, "headers")
			declare(t, b, topic, "g")

			headers, metadata, kinds := amqp.Table{}, message.Metadata{}, map[string]string{}
			for name, h := range text {
				headers[name], metadata[name] = h.value, h.want
			}
			for name, h := range apart {
				headers[name], kinds[name] = h.value, h.kind
			}
			foreign(t, server.URL, topic, amqp.Publishing{Headers: headers, ContentType: "text/plain", Body: []byte("odd")})
			metadata["content-type"] = "text/plain"
			foreign(t, server.URL, topic, amqp.Publishing{Headers: amqp.Table{envelope.KeyHeader: "11497"}, Body: []byte("same key")})

			_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			odd, same := next(t, msgs), next(t, msgs)
			require.Equal(t, "odd", string(odd.Payload))
			require.Equal(t, metadata, odd.Metadata)
			require.Equal(t, kinds, envelope.DeliveryFrom(odd.Context()).Apart)
			require.False(t, envelope.DeliveryFrom(odd.Context()).Redelivered)
			require.Equal(t, odd.Metadata[envelope.KeyHeader], same.Metadata[envelope.KeyHeader])

			// Redelivery adds a header of the broker's own, which is not metadata.
			require.True(t, odd.Nack())
			again := next(t, msgs)
			require.Equal(t, metadata, again.Metadata)
			require.True(t, envelope.DeliveryFrom(again.Context()).Redelivered)
			require.True(t, again.Ack())
			require.True(t, same.Ack())
		})
	}
}

// A UUID header that is no text, or too long, costs no message.
func TestF017UUIDHeader(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "uuid")
	declare(t, b, topic, "g")
	const header = "_watermill_message_uuid"
	_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	for _, value := range []any{int64(7), "short", true, nil, amqp.Table{}, "a-uuid-that-is-longer-than-the-contract-allows"} {
		foreign(t, server.URL, topic, amqp.Publishing{Headers: amqp.Table{header: value}})
		msg := next(t, msgs)
		require.NotEmpty(t, msg.UUID)
		require.LessOrEqual(t, len(msg.UUID), envelope.MaxUUID)
		require.Empty(t, msg.Metadata)
		switch value {
		case int64(7):
			require.Equal(t, "7", msg.UUID)
		case "short":
			require.Equal(t, "short", msg.UUID)
		}
		require.True(t, msg.Ack())
	}
}

// A message that another queue dead-lettered to the topic carries an array of the broker's and is read like any other.
func TestF017DeadLettered(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "dead")
	declare(t, b, topic, "g")
	ch := channel(t, server.URL)
	_, err := ch.QueueDeclare("expires", true, false, false, false, amqp.Table{"x-message-ttl": int32(1), "x-dead-letter-exchange": topic})
	require.NoError(t, err)
	require.NoError(t, ch.PublishWithContext(t.Context(), "", "expires", true, false, amqp.Publishing{
		MessageId: "an-id", Headers: amqp.Table{"name": "value"}, Body: []byte("p"),
	}))
	_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	msg := next(t, msgs)
	require.Equal(t, message.Metadata{"name": "value"}, msg.Metadata)
	require.Empty(t, envelope.DeliveryFrom(msg.Context()).Apart)
	require.Equal(t, "an-id", envelope.DeliveryFrom(msg.Context()).MessageID)
	require.True(t, msg.Ack())
}

// Bodies that nobody can read are delivered as they are, and nothing behind them waits.
func TestF035MalformedBodies(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "malformed")
	declare(t, b, topic, "g")
	bodies := []string{"{not json", "", "\x00\xff"}
	for _, body := range bodies {
		foreign(t, server.URL, topic, amqp.Publishing{Body: []byte(body)})
	}
	want := map[string]bool{}
	for _, body := range bodies {
		want[body] = true
	}
	for range 50 {
		msg := newMessage("good")
		want[msg.UUID] = true
		require.NoError(t, b.Publisher().Publish(topic, msg))
	}
	_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	for range 53 {
		msg := next(t, msgs)
		if string(msg.Payload) == "good" {
			delete(want, msg.UUID)
		} else {
			delete(want, string(msg.Payload))
		}
		require.True(t, msg.Ack())
	}
	require.Empty(t, want)
	wantReady(t, server, topic+":g", 0)
}
