package kafkabroker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const patience = 30 * time.Second

// newTopic makes a topic with so many partitions and configuration, as an operator would.
func newTopic(t testing.TB, partitions int32, config map[string]string) string {
	t.Helper()
	topic := testenv.Name(t, "kb")
	entries := map[string]*string{}
	for name, value := range config {
		entries[name] = &value
	}
	a := admin(t)
	require.NoError(t, a.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: entries}, false))
	t.Cleanup(func() { removeTopic(t, topic) })
	// The controller answers before the brokers have heard of the topic.
	testenv.Eventually(t, 30*time.Second, func() error {
		described, err := a.DescribeTopics([]string{topic})
		if err != nil {
			return err
		}
		if described[0].Err != sarama.ErrNoError || len(described[0].Partitions) != int(partitions) {
			return described[0].Err
		}
		return nil
	})
	return topic
}

type reader struct {
	t    testing.TB
	sub  broker.Subscriber
	msgs <-chan *message.Message
}

func subscribe(t testing.TB, b *kafkabroker.Broker, sub broker.Subscription) *reader {
	t.Helper()
	s, err := b.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)
	return &reader{t: t, sub: s, msgs: msgs}
}

func (r *reader) next() *message.Message {
	r.t.Helper()
	select {
	case msg, open := <-r.msgs:
		require.True(r.t, open, "the channel is closed")
		return msg
	case <-time.After(patience):
		require.FailNow(r.t, "no message comes")
		return nil
	}
}

func (r *reader) take(n int) []*message.Message {
	r.t.Helper()
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = r.next()
	}
	return all
}

func (r *reader) drain() {
	r.t.Helper()
	require.NoError(r.t, r.sub.Drain(r.t.Context()))
}

func delivery(msg *message.Message) envelope.Delivery { return envelope.DeliveryFrom(msg.Context()) }

// newMessages returns n messages with one ordering key and payloads 0 to n-1.
func newMessages(n int, orderingKey string) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(envelope.NewUUID(), fmt.Append(nil, i))
		if orderingKey != "" {
			msgs[i].Metadata.Set(envelope.OrderingKeyHeader, orderingKey)
		}
	}
	return msgs
}

// committed returns the group's committed offset in each partition; -1 where there is none.
func committed(t testing.TB, group, topic string, partitions ...int32) map[int32]int64 {
	t.Helper()
	response, err := admin(t).ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
	require.NoError(t, err)
	offsets := map[int32]int64{}
	for _, p := range partitions {
		offsets[p] = response.GetBlock(topic, p).Offset
	}
	return offsets
}
