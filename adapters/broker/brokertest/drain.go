package brokertest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

var drainTests = []test{
	{"DrainFinishesInFlight", testDrainFinishesInFlight},
	{"DrainEndedContextHandsBack", testDrainEndedContextHandsBack},
	{"DrainIdle", testDrainIdle},
	{"DrainNack", testDrainNack},
	{"SubscribeContextDrains", testSubscribeContextDrains},
}

// In-flight messages finish on a living context, their acks reach the broker, nothing new is handed over.
func testDrainFinishesInFlight(k *kit) {
	b, topic := k.declared("g")
	payloads := numbered("m", 15)
	k.publish(b, topic, payloads...)
	replica := k.open()
	r := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g", InFlight: 10})
	held := r.take(10)

	drained := make(chan error, 1)
	go func() { drained <- r.sub.Drain(within(k, k.h.patience())) }()
	k.eventually(func() bool { return r.sub.Consuming() != nil }, "Consuming stays nil during a drain")
	for _, msg := range held {
		require.NoError(k, msg.Context().Err(), "a drain must not end a message's context")
	}
	for i, msg := range held {
		require.True(k, msg.Ack())
		k.ended(msg, "its ack during a drain")
		if i < len(held)-1 {
			select {
			case err := <-drained:
				require.FailNow(k, "the drain returned before all was settled", "%v", err)
			default:
			}
		}
	}
	r.closed()
	select {
	case err := <-drained:
		require.NoError(k, err)
	case <-time.After(k.h.patience()):
		require.FailNow(k, "the drain does not return")
	}
	require.NoError(k, replica.Close())

	done := map[string]bool{}
	for _, payload := range payloadsOf(held) {
		done[payload] = true
	}
	var left []string
	for _, payload := range payloads {
		if !done[payload] {
			left = append(left, payload)
		}
	}
	after := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	require.Len(k, after.ackUntil(left...), len(left), "messages acked during the drain came again")
	after.silent("it was acked during the drain")
}

func testDrainEndedContextHandsBack(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 5)...)
	replica := k.open()
	r := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g"})
	held := r.take(5)
	require.True(k, held[0].Ack())
	k.ended(held[0], "its ack")

	require.ErrorIs(k, r.sub.Drain(within(k, 300*time.Millisecond)), context.DeadlineExceeded)
	r.closed()
	for _, msg := range held[1:] {
		k.ended(msg, "the drain's context ended")
		require.True(k, msg.Ack(), "a late ack is no fault of the handler")
	}
	after := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	again := after.take(4)
	require.ElementsMatch(k, payloadsOf(held[1:]), payloadsOf(again))
	for _, msg := range again {
		require.Equal(k, b.Capabilities().DeliveryCount, delivery(msg).Redelivered)
		require.True(k, msg.Ack())
	}
}

func testDrainIdle(k *kit) {
	b, topic := k.declared("g")
	never, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(k, err)
	require.NoError(k, never.Drain(within(k, k.h.patience())))
	require.NoError(k, never.Drain(within(k, k.h.patience())))
	require.NoError(k, never.Close())

	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	k.publish(b, topic, "p")
	r.ackUntil("p")
	require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	r.closed()
	require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	require.NoError(k, r.sub.Close())
}

// A nack during a drain is handed back at once: the drain does not sit out the delay.
func testDrainNack(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "p")
	replica := k.open()
	r := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g"})
	// Several nacks, so that the delay has grown where it grows.
	for range 4 {
		require.True(k, r.next().Nack())
	}
	msg := r.next()
	drained := make(chan error, 1)
	go func() { drained <- r.sub.Drain(within(k, k.h.patience())) }()
	k.eventually(func() bool { return r.sub.Consuming() != nil }, "Consuming stays nil during a drain")
	require.True(k, msg.Nack())
	require.NoError(k, <-drained)
	r.closed()
	k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil("p")
}

func testSubscribeContextDrains(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "p")
	replica := k.open()
	sub, err := replica.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(k, err)
	ctx, cancel := context.WithCancel(k.Context())
	msgs, err := sub.Subscribe(ctx, topic)
	require.NoError(k, err)
	r := &reader{k: k, sub: sub, msgs: msgs}
	msg := r.next()
	cancel()
	k.eventually(func() bool { return sub.Consuming() != nil }, "the end of Subscribe's context stops nothing")
	require.NoError(k, msg.Context().Err(), "a message's context must not derive from that of Subscribe")
	require.True(k, msg.Ack())
	r.closed()
	require.NoError(k, replica.Close())
	k.publish(b, topic, "next")
	require.Equal(k, map[string]int{"next": 1}, k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil("next"))
}
