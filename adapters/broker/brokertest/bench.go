package brokertest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

const benchBatch = 200

// Benchmark measures publishing in batches, publishing from many goroutines, and consuming.
func Benchmark(b *testing.B, h Harness) {
	b.Run("PublishBatch", func(b *testing.B) { benchmarkBatch(b, h) })
	b.Run("PublishParallel", func(b *testing.B) { benchmarkParallel(b, h) })
	b.Run("Consume", func(b *testing.B) { benchmarkConsume(b, h) })
}

// bench opens a broker and declares a topic with one group.
func bench(b *testing.B, h Harness) (broker.Broker, string) {
	topic := "bt-bench-" + token()
	br := h.Open(b)
	if h.Remove != nil {
		b.Cleanup(func() { h.Remove(b, topic, []string{"g"}) })
	}
	b.Cleanup(func() { _ = br.Close() })
	require.NoError(b, br.Declare(b.Context(), topic, []broker.Subscription{{Topic: topic, Group: "g"}}))
	return br, topic
}

func rate(b *testing.B) { b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s") }

func publishAll(b *testing.B, br broker.Broker, topic string) {
	for left := b.N; left > 0; left -= benchBatch {
		msgs := make([]*message.Message, min(left, benchBatch))
		for i := range msgs {
			msgs[i] = newMessage("0123456789abcdef0123456789abcdef")
		}
		for _, err := range br.Publisher().PublishBatch(b.Context(), topic, msgs) {
			require.NoError(b, err)
		}
	}
}

func benchmarkBatch(b *testing.B, h Harness) {
	br, topic := bench(b, h)
	b.ResetTimer()
	publishAll(b, br, topic)
	rate(b)
}

func benchmarkParallel(b *testing.B, h Harness) {
	br, topic := bench(b, h)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := br.Publisher().Publish(topic, newMessage("0123456789abcdef0123456789abcdef")); err != nil {
				b.Error(err)
				return
			}
		}
	})
	rate(b)
}

func benchmarkConsume(b *testing.B, h Harness) {
	br, topic := bench(b, h)
	publishAll(b, br, topic)
	sub, err := br.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
	require.NoError(b, err)
	b.ResetTimer()
	msgs, err := sub.Subscribe(b.Context(), topic)
	require.NoError(b, err)
	for range b.N {
		(<-msgs).Ack()
	}
	require.NoError(b, sub.Drain(b.Context()))
	rate(b)
}
