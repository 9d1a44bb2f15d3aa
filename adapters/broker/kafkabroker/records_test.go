package kafkabroker_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// F020, F012: a null header is a missing one, never the empty text; the record is delivered and the partition goes on.
func TestF020NullHeader(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	header := func(name string, value []byte) sarama.RecordHeader {
		return sarama.RecordHeader{Key: []byte(name), Value: value}
	}
	produce(t,
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("0"), Headers: []sarama.RecordHeader{header(envelope.KeyHeader, nil)}},
		&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("1"), Headers: []sarama.RecordHeader{
			header(envelope.KeyHeader, []byte("k")), header("other", nil), header("empty", []byte{}), header("bytes", []byte{0xff, 0xfe}),
			header("twice", []byte("first")), header("twice", []byte("last")), header("gone", []byte("text")), header("gone", nil),
			header("", []byte("nameless")), header("control\n", []byte("x"))}},
		&sarama.ProducerMessage{Topic: topic}, // neither key nor value nor headers
	)
	b := open(t, testConfig(t))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	msgs := r.take(3)

	require.NotContains(t, msgs[0].Metadata, envelope.KeyHeader)
	require.Equal(t, map[string]string{envelope.KeyHeader: "null"}, delivery(msgs[0]).Apart)

	require.Equal(t, message.Metadata{envelope.KeyHeader: "k", "empty": "", "twice": "last"}, msgs[1].Metadata)
	require.Equal(t, map[string]string{"other": "null", "bytes": "bytes", "gone": "null", "": "name", "control\n": "name"}, delivery(msgs[1]).Apart)

	require.Empty(t, msgs[2].Payload)
	require.Nil(t, delivery(msgs[2]).RecordKey)
	require.Equal(t, envelope.DeliveryUUID("kafka", topic+"/0/2"), msgs[2].UUID)
	for _, msg := range msgs {
		msg.Ack()
	}
	r.drain()
	require.Equal(t, int64(3), committed(t, topic, topic, 0)[0])
}

// The vectors are those of Kafka's own UtilsTest.testMurmur2, over six partitions.
func TestPartitionsAsJavaDoes(t *testing.T) {
	t.Parallel()
	hashes := map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	}
	topic := newTopic(t, 6, nil)
	b := open(t, testConfig(t))
	for key := range hashes {
		require.NoError(t, b.Publisher().Publish(topic, newMessages(1, key)...))
	}
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	for range hashes {
		msg := r.next()
		key := string(delivery(msg).RecordKey)
		require.Regexp(t, "/"+string('0'+(hashes[key]&0x7fffffff)%6)+"/", delivery(msg).Position, key)
		msg.Ack()
	}
}

// Without an ordering key a record has no key at all, not the empty one: that would put all in one partition.
func TestNoOrderingKeyIsNoRecordKey(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 2, nil)
	b := open(t, testConfig(t))
	require.NoError(t, b.Publisher().Publish(topic, newMessages(40, "")...))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	sessions := map[string]bool{}
	for range 40 {
		msg := r.next()
		require.Nil(t, delivery(msg).RecordKey)
		sessions[delivery(msg).Session] = true
		msg.Ack()
	}
	require.Len(t, sessions, 2)
}

// Programs with plain watermill-kafka and ours read each other's messages.
func TestPlainWatermillInterop(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	b := open(t, testConfig(t))
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: testenv.Kafka(t), Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	theirs := newMessages(1, "")[0]
	theirs.Metadata.Set("name", "value")
	require.NoError(t, publisher.Publish(topic, theirs))
	ours := newMessages(1, "order-1")[0]
	require.NoError(t, b.Publisher().Publish(topic, ours))

	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	conf := kafka.DefaultSaramaSubscriberConfig()
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: testenv.Kafka(t), Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: conf, ConsumerGroup: topic + ".plain",
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = subscriber.Close() })
	msgs, err := subscriber.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	plain := &reader{t: t, msgs: msgs}
	for _, want := range []*message.Message{theirs, ours} {
		for _, from := range []*reader{r, plain} {
			msg := from.next()
			require.Equal(t, want.UUID, msg.UUID)
			require.Equal(t, want.Metadata, msg.Metadata)
			require.True(t, bytes.Equal(want.Payload, msg.Payload))
			msg.Ack()
		}
	}
}

// A record that is too large for its topic can never be published; those that shared its record batch are.
func TestTooLargeForTheTopic(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, map[string]string{"max.message.bytes": "20000"})
	b := open(t, testConfig(t))
	msgs := newMessages(60, "k")
	for _, msg := range msgs {
		msg.Payload = bytes.Repeat([]byte("x"), 1000) // together far more than the limit
	}
	msgs[30].Payload = make([]byte, 30000)
	for i, err := range b.Publisher().PublishBatch(t.Context(), topic, msgs) {
		if i == 30 {
			require.ErrorIs(t, err, outbox.ErrUnpublishable)
			continue
		}
		require.NoError(t, err, "message %d", i)
	}
}

// Publishing to a topic that does not exist fails soon where operators own the topology, and makes it where the program does.
func TestPublishToMissingTopic(t *testing.T) {
	t.Parallel()
	topic := testenv.Name(t, "kb")
	conf := testConfig(t)
	conf.Topology = "verify"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	b := open(t, conf)
	errs := b.Publisher().PublishBatch(ctx, topic, newMessages(2, ""))
	require.Len(t, errs, 2)
	for _, err := range errs {
		require.ErrorIs(t, err, outbox.ErrUnroutable)
		require.ErrorContains(t, err, "topology")
	}
	require.ErrorContains(t, b.Declare(ctx, topic, nil), "does not exist")

	t.Cleanup(func() { removeTopic(t, topic) })
	require.NoError(t, open(t, testConfig(t)).Publisher().Publish(topic, newMessages(2, "")...))
	require.NoError(t, b.Declare(ctx, topic, nil))
	require.NoError(t, b.Publisher().Publish(topic, newMessages(2, "")...))
}
