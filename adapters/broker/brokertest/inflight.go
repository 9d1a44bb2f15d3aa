package brokertest

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

var inFlightTests = []test{
	{"InFlightMany", testInFlightMany},
	{"InFlightBound", testInFlightBound},
	{"AcksInAnyOrder", testAcksInAnyOrder},
	{"SlowDoesNotHoldOthers", testSlowDoesNotHoldOthers},
}

// 64 handlers that all block run at once.
func testInFlightMany(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 64)...)
	for _, msg := range k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", InFlight: 64}).take(64) {
		require.NoError(k, msg.Context().Err())
		require.True(k, msg.Ack())
	}
}

func testInFlightBound(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 40)...)
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", InFlight: 8})
	held := r.take(8)
	r.silent("eight are in flight, which is the bound")
	require.True(k, held[5].Ack())
	r.next()
	r.silent("eight are in flight again")
}

// Acks reach the broker whatever their order: after a restart only what was not acked comes again.
func testAcksInAnyOrder(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 20)...)
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	held := r.take(20)
	slices.Reverse(held)
	var left []*message.Message
	for i, msg := range held {
		if i%5 == 2 {
			left = append(left, msg)
			continue
		}
		require.True(k, msg.Ack())
		k.ended(msg, "its ack")
	}
	for _, msg := range left {
		require.NoError(k, msg.Context().Err(), "a message that is not settled lost its context")
		require.True(k, msg.Ack())
	}
	require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	require.NoError(k, b.Close())

	again := k.open()
	k.publish(again, topic, "next")
	require.Equal(k, map[string]int{"next": 1}, k.subscribe(again, broker.Subscription{Topic: topic, Group: "g"}).ackUntil("next"))
}

func testSlowDoesNotHoldOthers(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "slow")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", InFlight: 4})
	slow := r.next()
	payloads := numbered("quick", 50)
	k.publish(b, topic, payloads...)
	r.ackUntil(payloads...)
	require.NoError(k, slow.Context().Err())
	require.True(k, slow.Ack())
	k.ended(slow, "its ack")
}
