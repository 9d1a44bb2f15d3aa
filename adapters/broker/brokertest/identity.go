package brokertest

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

var identityTests = []test{
	{"IdentityDerived", testIdentityDerived},
	{"IdentityOfProtocol", testIdentityOfProtocol},
	{"IdentityOfEquals", testIdentityOfEquals},
}

// redelivered takes one message, lets the replica die, and returns both deliveries of it.
func (k *kit) redelivered(topic string) (first, second *message.Message) {
	k.Helper()
	b := k.open()
	first = k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).next()
	k.h.crash(k, b)
	second = k.subscribe(k.open(), broker.Subscription{Topic: topic, Group: "g"}).next()
	return first, second
}

// A message without a UUID gets one that is the same on each delivery, wherever the broker gives it an identity.
func testIdentityDerived(k *kit) {
	_, topic := k.declared("g")
	k.h.Foreign(k, topic, Foreign{Payload: []byte("p")})
	first, second := k.redelivered(topic)
	require.NotEmpty(k, first.UUID)
	require.Equal(k, k.h.AlwaysIdentified, delivery(first).MessageID != "")
	require.Equal(k, delivery(first).Position, delivery(second).Position)
	if delivery(first).Position != "" {
		require.Equal(k, first.UUID, second.UUID)
	}
	require.True(k, second.Ack())
}

// The identity that a protocol carries is told to the application, and a UUID derives from it.
func testIdentityOfProtocol(k *kit) {
	_, topic := k.declared("g")
	k.h.Foreign(k, topic, Foreign{MessageID: "order/4711 ä", Payload: []byte("p")})
	first, second := k.redelivered(topic)
	if delivery(first).MessageID == "" {
		require.NotEmpty(k, delivery(first).Position, "the broker must give a message an identity, or a place")
	} else {
		require.Equal(k, "order/4711 ä", delivery(first).MessageID)
	}
	require.LessOrEqual(k, len(first.UUID), envelope.MaxUUID)
	require.Equal(k, first.UUID, second.UUID)
	require.True(k, second.Ack())
}

// Equal messages without any identity stay two messages.
func testIdentityOfEquals(k *kit) {
	b, topic := k.declared("g")
	for range 2 {
		k.h.Foreign(k, topic, Foreign{Payload: []byte("same"), Headers: map[string]string{"h": "same"}})
	}
	msgs := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).take(2)
	require.NotEqual(k, msgs[0].UUID, msgs[1].UUID)
	for _, msg := range msgs {
		require.True(k, msg.Ack())
	}
}
