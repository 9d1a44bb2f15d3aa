package sqlbroker_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// The comparison: so many replicas of one group, each handling a message in a millisecond.
const (
	replicas = 4
	handling = time.Millisecond
	watched  = 4 * time.Second
)

// BenchmarkAgainstStock measures messages per second of this subscriber and of watermill-sql's own on the same table shape, the
// same server and in the same run, and reports the ratio.
//
//	go test ./adapters/broker/sqlbroker -run '^$' -bench AgainstStock -benchtime 1x
func BenchmarkAgainstStock(b *testing.B) {
	for _, kind := range []string{"postgres", "mysql"} {
		b.Run(kind, func(b *testing.B) {
			db := newDatabase(b, kind)
			for b.Loop() {
				stock := measureStock(b, db)
				ours := measureOurs(b, db)
				b.ReportMetric(stock, "stock-msg/s")
				b.ReportMetric(ours, "ours-msg/s")
				b.ReportMetric(ours/stock, "ratio")
			}
		})
	}
}

// fill publishes n messages through the adapter's publisher.
func fill(b *testing.B, br broker.Broker, topic string, n int) {
	const each = 1000
	for range n / each {
		msgs := make([]*message.Message, each)
		for i := range msgs {
			msgs[i] = message.NewMessage(uuid.NewString(), []byte(`{"payment_id":"pay-00001","amount":"10.00"}`))
			msgs[i].Metadata.Set("idempotency-key", msgs[i].UUID)
		}
		for _, err := range br.Publisher().PublishBatch(b.Context(), topic, msgs) {
			require.NoError(b, err)
		}
	}
}

// rateOf counts what is handled while it is watched, after a moment to start.
func rateOf(handled *atomic.Int64) float64 {
	time.Sleep(time.Second)
	before, began := handled.Load(), time.Now()
	time.Sleep(watched)
	return float64(handled.Load()-before) / time.Since(began).Seconds()
}

func measureStock(b *testing.B, db database) float64 {
	topic := testenv.Name(b, "stock")
	fill(b, open(b, config(db, nil)), topic, 20_000)
	ctx, cancel := context.WithCancel(b.Context())
	var handled atomic.Int64
	var running sync.WaitGroup
	for range replicas {
		sub := stockSubscriber(b, db, "g")
		msgs, err := sub.Subscribe(ctx, topic)
		require.NoError(b, err)
		running.Go(func() {
			for msg := range msgs {
				time.Sleep(handling)
				msg.Ack()
				handled.Add(1)
			}
		})
	}
	rate := rateOf(&handled)
	cancel()
	running.Wait()
	return rate
}

func measureOurs(b *testing.B, db database) float64 {
	topic := testenv.Name(b, "ours")
	br := open(b, config(db, nil))
	require.NoError(b, br.Declare(b.Context(), topic, []broker.Subscription{{Topic: topic, Group: "g"}}))
	fill(b, br, topic, 200_000)
	var handled atomic.Int64
	var running sync.WaitGroup
	var subs []broker.Subscriber
	for range replicas {
		sub, err := open(b, config(db, nil)).Subscriber(broker.Subscription{Topic: topic, Group: "g"})
		require.NoError(b, err)
		msgs, err := sub.Subscribe(b.Context(), topic)
		require.NoError(b, err)
		subs = append(subs, sub)
		for range 256 {
			running.Go(func() {
				for msg := range msgs {
					time.Sleep(handling)
					msg.Ack()
					handled.Add(1)
				}
			})
		}
	}
	rate := rateOf(&handled)
	for _, sub := range subs {
		require.NoError(b, sub.Close())
	}
	running.Wait()
	return rate
}
