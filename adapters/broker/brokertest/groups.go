package brokertest

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

var groupTests = []test{
	{"GroupsEachGetAll", testGroupsEachGetAll},
	{"GroupKeepsBeforeFirstConsumer", testGroupKeepsBeforeFirstConsumer},
	{"GroupReplicasShare", testGroupReplicasShare},
	{"DeclareTwice", testDeclareTwice},
	{"TopicsApart", testTopicsApart},
}

func testGroupsEachGetAll(k *kit) {
	b, topic := k.declared("one", "two")
	payloads := numbered("m", 30)
	k.publish(b, topic, payloads...)
	for _, group := range []string{"one", "two"} {
		r := k.subscribe(b, broker.Subscription{Topic: topic, Group: group})
		require.Len(k, r.ackUntil(payloads...), len(payloads), "group %s", group)
	}
}

// What is published between Declare and the first consumer ever is kept, also over the publisher's end.
func testGroupKeepsBeforeFirstConsumer(k *kit) {
	publisher, topic := k.declared("g")
	payloads := numbered("m", 20)
	k.publish(publisher, topic, payloads...)
	require.NoError(k, publisher.Close())

	consumer := k.open()
	k.declare(consumer, topic, "g")
	k.subscribe(consumer, broker.Subscription{Topic: topic, Group: "g"}).ackUntil(payloads...)
}

// Replicas of one group share the messages: both work, and none is lost.
func testGroupReplicasShare(k *kit) {
	b, topic := k.declared("g")
	readers := []*reader{
		k.subscribe(k.open(), broker.Subscription{Topic: topic, Group: "g", InFlight: 4}),
		k.subscribe(k.open(), broker.Subscription{Topic: topic, Group: "g", InFlight: 4}),
	}
	var mu sync.Mutex
	seen, took := map[string]bool{}, map[int]int{}
	var wg sync.WaitGroup
	for i, r := range readers {
		wg.Go(func() {
			for msg := range r.msgs {
				mu.Lock()
				seen[string(msg.Payload)] = true
				took[i]++
				mu.Unlock()
				msg.Ack()
			}
		})
	}
	published := 0
	k.eventually(func() bool {
		payloads := numbered(token(), 20)
		msgs := make([]*message.Message, len(payloads))
		for i := range msgs {
			msgs[i] = newMessage(payloads[i])
		}
		if err := b.Publisher().Publish(topic, msgs...); err != nil {
			k.Error(err)
		}
		published += len(msgs)
		mu.Lock()
		defer mu.Unlock()
		return took[0] > 0 && took[1] > 0
	}, "one of two replicas got nothing")
	k.eventually(func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == published
	}, "messages are missing")
	for _, r := range readers {
		require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	}
	wg.Wait()
}

func testDeclareTwice(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, "kept")
	var wg sync.WaitGroup
	for range 4 {
		replica := k.open()
		wg.Go(func() {
			subs := []broker.Subscription{{Topic: topic, Group: "g"}, {Topic: topic, Group: "later"}}
			if err := replica.Declare(k.Context(), topic, subs); err != nil {
				k.Errorf("declaring what is there: %v", err)
			}
		})
	}
	wg.Wait()
	k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil("kept")
}

func testTopicsApart(k *kit) {
	b, one := k.declared("g")
	two := one + ".b"
	k.declare(b, two, "g")
	k.publish(b, one, "of one")
	k.publish(b, two, "of two")
	first := k.subscribe(b, broker.Subscription{Topic: one, Group: "g"})
	second := k.subscribe(b, broker.Subscription{Topic: two, Group: "g"})
	require.Equal(k, map[string]int{"of one": 1}, first.ackUntil("of one"))
	require.Equal(k, map[string]int{"of two": 1}, second.ackUntil("of two"))
	first.silent("it belongs to the other topic")
}
