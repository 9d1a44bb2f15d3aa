package idempotency_test

import (
	"sync/atomic"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// stock are Watermill's own publishers and subscribers as their packages make them.
var stock = map[string]func(t *testing.T, topic string) (message.Publisher, message.Subscriber){
	"amqp": func(t *testing.T, _ string) (message.Publisher, message.Subscriber) {
		config := amqp.NewDurableQueueConfig(testenv.RabbitMQ(t).URL)
		pub, err := amqp.NewPublisher(config, watermill.NopLogger{})
		require.NoError(t, err)
		sub, err := amqp.NewSubscriber(config, watermill.NopLogger{})
		require.NoError(t, err)
		return pub, sub
	},
	"kafka": func(t *testing.T, topic string) (message.Publisher, message.Subscriber) {
		brokers := testenv.Kafka(t)
		pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
		require.NoError(t, err)
		fromOldest := kafka.DefaultSaramaSubscriberConfig()
		fromOldest.Consumer.Offsets.Initial = sarama.OffsetOldest
		sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: brokers, Unmarshaler: kafka.DefaultMarshaler{}, ConsumerGroup: topic, OverwriteSaramaConfig: fromOldest,
			InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1},
		}, watermill.NopLogger{})
		require.NoError(t, err)
		require.NoError(t, sub.SubscribeInitialize(topic))
		return pub, sub
	},
}

// The middleware in a plain router on Watermill's own adapters: sent twice, and with a first attempt that fails, each message
// has one effect.
func TestStockSubscribers(t *testing.T) {
	for name, open := range stock {
		t.Run(name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				topic := testenv.Name(t, "stock")
				pub, sub := open(t, topic)
				producer := envelope.NewPublisher(pub, envelope.PublisherOptions{})
				var calls atomic.Int64
				middleware := h.newRouter(t, idempotency.Binding{})
				runRouter(t, func(r *message.Router) {
					r.AddMiddleware(middleware.Middleware)
					r.AddConsumerHandler("stock", topic, sub, func(msg *message.Message) error {
						if err := effectIn(msg); err != nil || calls.Add(1) > 1 {
							return err
						}
						return errBroken // its row is rolled back
					})
				})
				const messages = 10
				for n := range messages {
					msg := newMessage(string(rune('a'+n)), "1")
					for range 2 {
						require.NoError(t, producer.Publish(topic, msg.Copy()))
					}
				}
				last := newMessage("last", "1")
				require.NoError(t, producer.Publish(topic, last))
				eventually(t, "the last message is handled", func() bool { return h.effectsOf(t, "last") == 1 })
				eventually(t, "every message is handled", func() bool { return h.effects(t) == messages+1 })
				require.EqualValues(t, messages+2, calls.Load())
				require.NoError(t, pub.Close())
			})
		})
	}
}
