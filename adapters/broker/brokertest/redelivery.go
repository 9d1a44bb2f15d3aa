package brokertest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

var redeliveryTests = []test{
	{"CrashRedelivers", testCrashRedelivers},
	{"CloseHandsBack", testCloseHandsBack},
	{"NackRedelivers", testNackRedelivers},
	{"NackIsNotHot", testNackIsNotHot},
	{"SettlementEndsContext", testSettlementEndsContext},
	{"LateSettlementIsQuiet", testLateSettlementIsQuiet},
}

// What was not acked when a replica died comes again, marked; what was acked and known to the broker does not.
func testCrashRedelivers(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 10)...)
	replica := k.open()
	r := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g"})
	held := r.take(10)
	k.h.crash(k, replica)
	for _, msg := range held {
		k.ended(msg, "the crash")
	}
	after := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	again := after.take(10)
	require.ElementsMatch(k, payloadsOf(held), payloadsOf(again))
	for _, msg := range again {
		require.Equal(k, b.Capabilities().DeliveryCount, delivery(msg).Redelivered)
		require.True(k, msg.Ack())
	}
}

// Close without a drain hands back: another replica gets what was in flight without any time-out of a lost process.
func testCloseHandsBack(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 5)...)
	replica := k.open()
	held := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g"}).take(5)
	require.NoError(k, replica.Close())
	for _, msg := range held {
		k.ended(msg, "Close")
	}
	again := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).take(5)
	require.ElementsMatch(k, payloadsOf(held), payloadsOf(again))
}

func testNackRedelivers(k *kit) {
	b, topic := k.declared("g")
	ids := k.publish(b, topic, "p")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	first := r.next()
	require.False(k, delivery(first).Redelivered && b.Capabilities().Ordering == broker.OrderNone, "the first delivery is marked as another")
	require.True(k, first.Nack())
	second := r.next()
	require.Equal(k, ids[0], second.UUID)
	require.Equal(k, first.Metadata, second.Metadata)
	require.Equal(k, []byte("p"), []byte(second.Payload))
	require.Equal(k, delivery(first).Position, delivery(second).Position)
	if b.Capabilities().DeliveryCount {
		require.True(k, delivery(second).Redelivered)
	}
	require.True(k, second.Ack())
}

// F018, F067: a message nacked each time neither loops hot nor keeps others waiting.
func testNackIsNotHot(k *kit) {
	b, topic := k.declared("g")
	payloads := append([]string{"bad"}, numbered("good", 40)...)
	k.publish(b, topic, payloads...)
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", InFlight: 8})
	const watch = 3 * time.Second
	bad, good := 0, map[string]bool{}
	for deadline := time.After(watch); ; {
		select {
		case msg := <-r.msgs:
			if string(msg.Payload) == "bad" {
				bad++
				require.True(k, msg.Nack())
				continue
			}
			good[string(msg.Payload)] = true
			require.True(k, msg.Ack())
			continue
		case <-deadline:
		}
		break
	}
	require.LessOrEqual(k, bad, 30, "the nacked message loops hot: %d deliveries in %s", bad, watch)
	for bad < 3 || len(good) < 40 {
		msg := r.next()
		if string(msg.Payload) == "bad" {
			bad++
			msg.Nack()
			continue
		}
		good[string(msg.Payload)] = true
		msg.Ack()
	}
}

func testSettlementEndsContext(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "1", "2", "3")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	msgs := r.take(3)
	for _, msg := range msgs {
		require.NoError(k, msg.Context().Err())
	}
	require.True(k, msgs[0].Ack())
	k.ended(msgs[0], "its ack")
	require.True(k, msgs[1].Nack())
	k.ended(msgs[1], "its nack")
	require.NoError(k, msgs[2].Context().Err(), "another message's settlement ended the context")
}

// A handler that ends after its delivery was taken away settles into the void.
func testLateSettlementIsQuiet(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "1", "2")
	replica := k.open()
	held := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g"}).take(2)
	k.h.crash(k, replica)
	require.True(k, held[0].Ack())
	require.True(k, held[1].Nack())
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	require.Len(k, r.ackUntil("1", "2"), 2)
}
