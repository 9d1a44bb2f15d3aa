package brokertest

import (
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
)

var lifecycleTests = []test{
	{"CloseTwice", testCloseTwice},
	{"CloseWhileBlocked", testCloseWhileBlocked},
	{"SubscribeTwice", testSubscribeTwice},
	{"SubscribeOtherTopic", testSubscribeOtherTopic},
	{"ConsumingTellsTheTruth", testConsumingTellsTheTruth},
	{"Ping", testPing},
}

// testLeak finds goroutines that outlive their broker. It must run alone.
func testLeak(k *kit) {
	excused := append([]goleak.Option{goleak.IgnoreCurrent()}, k.h.Leaks...)
	topic := k.name("bt")
	for range 2 {
		b := k.open()
		k.declare(b, topic, "g")
		k.publish(b, topic, "settled", "in flight")
		r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
		r.next().Ack()
		r.next()
		require.NoError(k, b.Close())
	}
	require.NoError(k, goleak.Find(excused...), "goroutines outlive Close")
}

func testCloseTwice(k *kit) {
	b, topic := k.declared("g")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := b.Close(); err != nil {
				k.Errorf("closing: %v", err)
			}
		})
	}
	wg.Wait()
	r.closed()
	require.NoError(k, b.Close())
	require.NoError(k, r.sub.Close())
	require.NoError(k, r.sub.Drain(within(k, k.h.patience())))
	require.Error(k, b.Publisher().Publish(topic, newMessage("p")), "publishing on a closed broker must fail")
	errs := b.Publisher().PublishBatch(k.Context(), topic, numberedMessages(2))
	require.Len(k, errs, 2)
	require.Error(k, errs[0])
	require.Error(k, errs[1])
}

// Close returns though nobody reads the channel and handlers are stuck.
func testCloseWhileBlocked(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 30)...)
	replica := k.open()
	r := k.subscribe(replica, broker.Subscription{Topic: topic, Group: "g", InFlight: 10})
	r.take(3)
	closed := make(chan error, 1)
	go func() { closed <- replica.Close() }()
	select {
	case err := <-closed:
		require.NoError(k, err)
	case <-time.After(k.h.patience()):
		require.FailNow(k, "Close hangs")
	}
	require.Eventually(k, func() bool {
		select {
		case _, open := <-r.msgs:
			return !open
		default:
			return false
		}
	}, k.h.patience(), time.Millisecond, "the channel stays open")
	k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil(numbered("m", 30)...)
}

func testSubscribeTwice(k *kit) {
	b, topic := k.declared("g")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	_, err := r.sub.Subscribe(k.Context(), topic)
	require.Error(k, err)
	k.publish(b, topic, "p")
	r.ackUntil("p")
	require.NoError(k, r.sub.Close())
	_, err = r.sub.Subscribe(k.Context(), topic)
	require.Error(k, err)
}

func testSubscribeOtherTopic(k *kit) {
	b, topic := k.declared("g")
	sub, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(k, err)
	_, err = sub.Subscribe(k.Context(), topic+"-other")
	require.Error(k, err, "a subscriber is made for one topic")
}

func testConsumingTellsTheTruth(k *kit) {
	b, topic := k.declared("g")
	sub, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(k, err)
	require.Error(k, sub.Consuming(), "nothing is consumed before Subscribe")
	_, err = sub.Subscribe(k.Context(), topic)
	require.NoError(k, err)
	k.eventually(func() bool { return sub.Consuming() == nil }, "Consuming stays an error")
	require.NoError(k, sub.Drain(within(k, k.h.patience())))
	require.Error(k, sub.Consuming())
}

func testPing(k *kit) {
	b := k.open()
	require.NoError(k, b.Ping(within(k, k.h.patience())))
	require.NoError(k, b.Close())
	require.Error(k, b.Ping(within(k, k.h.patience())))
}
