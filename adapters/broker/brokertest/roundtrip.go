package brokertest

import (
	"bytes"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var roundtripTests = []test{
	{"RoundtripExact", testRoundtripExact},
	{"RoundtripLimits", testRoundtripLimits},
	{"RoundtripLongNames", testRoundtripLongNames},
	{"PublishNothing", testPublishNothing},
	{"PublishLeavesMessage", testPublishLeavesMessage},
	{"ForeignMessage", testForeignMessage},
}

func testRoundtripExact(k *kit) {
	b, topic := k.declared("g")
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	metadata := message.Metadata{
		envelope.KeyHeader: "Key Ä/ü%20", "plain": "v", "Case": "A", "case": "a", "empty": "", "utf8": "żółw ☃ 漢字",
		"spaces": "  a  ", "content-type": "application/json", "x.y_z-1": "dots", "number": "007",
	}
	for _, payload := range [][]byte{every, {}, []byte("text"), []byte("\x00"), bytes.Repeat([]byte{0xff, 0}, 5000)} {
		msg := message.NewMessage(uuid.NewString(), payload)
		for name, value := range metadata {
			msg.Metadata.Set(name, value)
		}
		require.NoError(k, b.Publisher().Publish(topic, msg))

		// The subscription is closed each time, so that a message that is settled is known to stay settled.
		r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
		got := r.next()
		require.Equal(k, msg.UUID, got.UUID)
		require.True(k, bytes.Equal(payload, got.Payload), "payload of %d bytes came as %d", len(payload), len(got.Payload))
		require.Equal(k, metadata, got.Metadata)
		require.Equal(k, k.h.Name, delivery(got).Broker)
		require.NotEmpty(k, delivery(got).Session)
		require.Empty(k, delivery(got).Apart)
		require.True(k, got.Ack())
		require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	}
}

// A message as large as the contract allows passes every broker. Where a broker says of itself that it takes less, one as large as that
// passes, whatever is in it, and what does not pass is refused for good.
func testRoundtripLimits(k *kit) {
	b, topic := k.declared("g")
	limited := b.Capabilities().MaxPayload
	large := func(n int, payload, metadata string) *message.Message {
		msg := message.NewMessage(uuid.NewString(), bytes.Repeat([]byte(payload), n))
		msg.Metadata.Set(strings.Repeat("n", envelope.MaxMetadataName), "v")
		msg.Metadata.Set("big", strings.Repeat(metadata, 30<<10))
		msg.Metadata.Set(envelope.KeyHeader, strings.Repeat("k", envelope.MaxKey))
		return msg
	}
	msg := large(envelope.DefaultMaxPayload, "p", "v")
	if limited > 0 {
		require.ErrorIs(k, b.Publisher().Publish(topic, large(envelope.DefaultMaxPayload, "\xff", "v")), outbox.ErrUnpublishable)
		msg = large(limited, "\xff", "\x01")
	}
	require.NoError(k, b.Publisher().Publish(topic, msg))

	got := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).next()
	require.True(k, msg.Equals(got))
	require.True(k, got.Ack())
}

func testRoundtripLongNames(k *kit) {
	topic := k.name(strings.Repeat("T", envelope.MaxTopic-13))
	require.Len(k, topic, envelope.MaxTopic)
	stem := strings.Repeat("g", 99)
	groups := []string{stem + "1", stem + "2"}
	b := k.open()
	k.declare(b, topic, groups...)
	k.publish(b, topic, "one")
	for _, group := range groups {
		k.subscribe(b, broker.Subscription{Topic: topic, Group: group}).ackUntil("one")
	}
}

func testPublishNothing(k *kit) {
	b, topic := k.declared("g")
	require.NoError(k, b.Publisher().Publish(topic))
	require.Empty(k, b.Publisher().PublishBatch(k.Context(), topic, nil))
}

func testPublishLeavesMessage(k *kit) {
	b, topic := k.declared("g")
	msg := newMessage("p")
	copied := msg.Copy()
	require.NoError(k, b.Publisher().Publish(topic, msg))
	require.True(k, copied.Equals(msg), "the publisher changed the caller's message")

	bare := &message.Message{UUID: uuid.NewString(), Payload: []byte("nil metadata")}
	require.NoError(k, b.Publisher().Publish(topic, bare))
	require.Nil(k, bare.Metadata)
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	for range 2 {
		got := r.next()
		require.NotNil(k, got.Metadata, "metadata must never be nil")
		require.True(k, got.Ack())
	}
}

// F035: a foreign producer's message is not bad for lacking a library's headers.
func testForeignMessage(k *kit) {
	b, topic := k.declared("g")
	k.h.Foreign(k, topic, Foreign{Headers: map[string]string{"plain": "v", "idempotency-key": "k"}, Payload: []byte("{not json")})
	k.h.Foreign(k, topic, Foreign{})
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	bodies := map[string]message.Metadata{}
	for range 2 {
		got := r.next()
		require.NotEmpty(k, got.UUID)
		require.LessOrEqual(k, len(got.UUID), envelope.MaxUUID)
		require.NotNil(k, got.Metadata)
		bodies[string(got.Payload)] = got.Metadata
		require.True(k, got.Ack())
	}
	require.Equal(k, map[string]message.Metadata{"{not json": {"plain": "v", "idempotency-key": "k"}, "": {}}, bodies)
}
