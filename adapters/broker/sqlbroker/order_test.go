package sqlbroker_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// A nacked message comes again after a delay that grows, and others do not wait for it.
func TestNackIsDelayed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		publish(t, b.Publisher(), topic, "bad")
		_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
		for _, delay := range []time.Duration{100, 200, 400, 800} {
			msg := next(t, msgs)
			require.Equal(t, "bad", string(msg.Payload))
			nacked := time.Now()
			require.True(t, msg.Nack())
			if delay > 200 { // there is time for it
				publish(t, b.Publisher(), topic, "good")
				require.Equal(t, []string{"good"}, ackAll(t, msgs, 1))
			}
			silent(t, msgs, time.Until(nacked.Add(delay*time.Millisecond)))
		}
		last := next(t, msgs)
		require.True(t, envelope.DeliveryFrom(last.Context()).Redelivered)
		require.True(t, last.Ack())
	})
}

// Two replicas of an ordered subscription, with some messages nacked at first: each key's messages are settled in their order, by one
// replica at a time, and the second takes over where the first ends.
func TestOrderWithTwoReplicasAndNacks(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		b, topic := declared(t, db, "g")
		const keys, each = 7, 40
		for n := range each {
			msgs := make([]*message.Message, keys)
			for k := range msgs {
				msgs[k] = newMessage(fmt.Sprint(n))
				msgs[k].Metadata.Set(envelope.OrderingKeyHeader, fmt.Sprint(k))
			}
			require.NoError(t, b.Publisher().Publish(topic, msgs...))
		}
		var mu sync.Mutex
		settled, nacked := map[string][]int{}, map[string]bool{}
		took := [2]int{}
		total := func() int {
			mu.Lock()
			defer mu.Unlock()
			return took[0] + took[1]
		}
		var running sync.WaitGroup
		var subs []broker.Subscriber
		for i := range 2 {
			// One in flight at the handler, several in our hands: a nacked one must hold back those of its key that wait there.
			sub, msgs := subscribe(t, open(t, config(db, nil)), broker.Subscription{Topic: topic, Group: "g", Ordered: true, InFlight: 20})
			subs = append(subs, sub)
			running.Go(func() {
				for msg := range msgs {
					var n int
					_, _ = fmt.Sscan(string(msg.Payload), &n)
					key := msg.Metadata.Get(envelope.OrderingKeyHeader)
					mu.Lock()
					id := key + "/" + string(msg.Payload)
					if n%10 == 3 && !nacked[id] {
						nacked[id] = true
						mu.Unlock()
						msg.Nack()
						<-msg.Context().Done()
						time.Sleep(5 * time.Millisecond)
						continue
					}
					settled[key] = append(settled[key], n)
					took[i]++
					mu.Unlock()
					msg.Ack()
				}
			})
		}
		testenv.Eventually(t, patience, func() error {
			if n := total(); n < keys*each/3 {
				return fmt.Errorf("%d settled", n)
			}
			return nil
		})
		mu.Lock()
		working := 0
		if took[1] > 0 {
			working = 1
		}
		require.Zero(t, took[1-working], "both replicas are active")
		mu.Unlock()
		require.NoError(t, subs[working].Drain(t.Context()))
		testenv.Eventually(t, patience, func() error {
			if n := total(); n < keys*each {
				return fmt.Errorf("%d settled", n)
			}
			return nil
		})
		for _, sub := range subs {
			require.NoError(t, sub.Close())
		}
		running.Wait()
		require.NotZero(t, took[1-working])
		for key, all := range settled {
			for n := range each {
				require.Equal(t, n, all[n], "order of key %s: %v", key, all)
			}
		}
	})
}
