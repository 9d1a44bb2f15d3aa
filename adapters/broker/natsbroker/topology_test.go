package natsbroker

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// external opens a broker on the shared server, with a topic of the test's own.
func external(t *testing.T, configure func(*Config)) (*Broker, string) {
	url := testenv.NATS(t)
	b := openTest(t, Factory(), func(c *Config) {
		c.URL = url
		if configure != nil {
			configure(c)
		}
	}, "").(*Broker)
	t.Cleanup(func() { _ = b.Close() })
	return b, testenv.Name(t, "t")
}

func makeStream(t *testing.T, b *Broker, cfg jetstream.StreamConfig) jetstream.Stream {
	stream, err := b.link.js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		js, err := jetstream.New(openTest(t, Factory(), func(c *Config) { c.URL = testenv.NATS(t) }, "").(*Broker).link.nc)
		require.NoError(t, err)
		_ = js.DeleteStream(context.Background(), cfg.Name)
	})
	return stream
}

func one(payload string) *message.Message {
	return message.NewMessage(envelope.NewUUID(), []byte(payload))
}

// Streams and consumers of operators are used as they are, and checked.
func TestTopologyVerify(t *testing.T) {
	t.Parallel()
	b, topic := external(t, func(c *Config) { c.Topology = topologyVerify })
	sub := broker.Subscription{Topic: topic + ".created", Group: "g"}
	require.ErrorContains(t, b.Declare(t.Context(), sub.Topic, []broker.Subscription{sub}), "has no stream")
	require.ErrorIs(t, b.Publisher().Publish(sub.Topic, one("p")), outbox.ErrUnroutable)

	stream := makeStream(t, b, jetstream.StreamConfig{Name: "OPS-" + topic, Subjects: []string{topic + ".>"}})
	require.NoError(t, b.Declare(t.Context(), sub.Topic, nil))
	require.ErrorContains(t, b.Declare(t.Context(), sub.Topic, []broker.Subscription{sub}), "has no consumer g")

	bad := jetstream.ConsumerConfig{Durable: "g", AckPolicy: jetstream.AckNonePolicy, FilterSubject: topic + ".other"}
	_, err := stream.CreateConsumer(t.Context(), bad)
	require.NoError(t, err)
	err = b.Declare(t.Context(), sub.Topic, []broker.Subscription{sub})
	require.ErrorContains(t, err, "ack policy must be explicit")
	require.ErrorContains(t, err, "its filter must take")
	require.NoError(t, stream.DeleteConsumer(t.Context(), "g"))
	_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "g", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 7 * time.Second, FilterSubject: sub.Topic})
	require.NoError(t, err)
	require.NoError(t, b.Declare(t.Context(), sub.Topic, []broker.Subscription{sub}))

	require.NoError(t, b.Publisher().Publish(sub.Topic, one("p")))
	s, err := b.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)
	msg := <-msgs
	require.Equal(t, "p", string(msg.Payload))
	require.True(t, msg.Ack())
	<-msg.Context().Done()
	consumer, err := stream.Consumer(t.Context(), "g")
	require.NoError(t, err)
	require.Equal(t, 7*time.Second, consumer.CachedInfo().Config.AckWait, "an operator's consumer was changed")
}

// Declare uses an operator's stream that takes the subject, and makes only what is missing.
func TestTopologyDeclareBesideOperators(t *testing.T) {
	t.Parallel()
	b, topic := external(t, nil)
	topic = topic[len(topic)-20:]
	stream := makeStream(t, b, jetstream.StreamConfig{Name: "OPS-" + topic, Subjects: []string{topic + ".>"}, MaxAge: time.Hour})
	require.NoError(t, b.Declare(t.Context(), topic+".a", []broker.Subscription{{Group: "g"}}))
	require.NoError(t, b.Publisher().Publish(topic+".a", one("p")))
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, time.Hour, info.Config.MaxAge, "an operator's stream was changed")
	require.EqualValues(t, 1, info.State.Msgs)
	consumer, err := stream.Consumer(t.Context(), "g")
	require.NoError(t, err)
	require.Equal(t, topic+".a", consumer.CachedInfo().Config.FilterSubject)
}

// A stream of ours follows the configuration, and keeps its messages.
func TestTopologyUpdates(t *testing.T) {
	t.Parallel()
	b, topic := external(t, nil)
	t.Cleanup(func() { _ = b.link.js.DeleteStream(context.Background(), assetName(topic)) })
	require.NoError(t, b.Declare(t.Context(), topic, []broker.Subscription{{Group: "g"}}))
	require.NoError(t, b.Publisher().Publish(topic, one("p")))
	later, _ := external(t, func(c *Config) { c.MaxAge, c.AckWait = 48*time.Hour, 11*time.Second })
	require.NoError(t, later.Declare(t.Context(), topic, []broker.Subscription{{Group: "g"}}))
	stream, err := later.link.js.Stream(t.Context(), assetName(topic))
	require.NoError(t, err)
	require.Equal(t, 48*time.Hour, stream.CachedInfo().Config.MaxAge)
	require.EqualValues(t, 1, stream.CachedInfo().State.Msgs)
	consumer, err := stream.Consumer(t.Context(), "g")
	require.NoError(t, err)
	require.Equal(t, 11*time.Second, consumer.CachedInfo().Config.AckWait)
}

// With configured names nothing is named after the topic.
func TestTopologyNames(t *testing.T) {
	t.Parallel()
	const topic = "orders"
	name := testenv.Name(t, "n")
	b, _ := external(t, func(c *Config) {
		c.Topics = map[string]Topic{topic: {Stream: "S-" + name, Subject: "shop." + name, Durables: map[string]string{"g": "D-" + name}}}
	})
	t.Cleanup(func() { _ = b.link.js.DeleteStream(context.Background(), "S-"+name) })
	require.NoError(t, b.Declare(t.Context(), topic, []broker.Subscription{{Group: "g"}}))
	require.NoError(t, b.Publisher().Publish(topic, one("p")))
	stream, err := b.link.js.Stream(t.Context(), "S-"+name)
	require.NoError(t, err)
	require.Equal(t, []string{"shop." + name}, stream.CachedInfo().Config.Subjects)
	require.EqualValues(t, 1, stream.CachedInfo().State.Msgs)
	_, err = stream.Consumer(t.Context(), "D-"+name)
	require.NoError(t, err)
}

// The broker takes what the server's limit allows, and says of the rest that it never will.
func TestTooLargeForServer(t *testing.T) {
	t.Parallel()
	b, topic := external(t, nil)
	stream := makeStream(t, b, jetstream.StreamConfig{Name: assetName(topic), Subjects: []string{topic}, MaxMsgSize: 1000})
	err := b.Publisher().Publish(topic, one(string(make([]byte, 2000))))
	require.ErrorIs(t, err, outbox.ErrUnpublishable)
	require.NoError(t, b.Publisher().Publish(topic, one("small")))
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, info.State.Msgs)

	b.maxPayload = 8 << 20 // beyond the server's max_payload
	err = b.Publisher().Publish(topic, one(string(make([]byte, 4<<20))))
	require.ErrorIs(t, err, outbox.ErrUnpublishable)
	require.ErrorContains(t, err, "max_payload")
}

// A full stream is an outage of the broker, not a fault of the message.
func TestFullStream(t *testing.T) {
	t.Parallel()
	b, topic := external(t, nil)
	makeStream(t, b, jetstream.StreamConfig{Name: assetName(topic), Subjects: []string{topic}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	require.NoError(t, b.Publisher().Publish(topic, one("fits")))
	require.ErrorIs(t, b.Publisher().Publish(topic, one("does not")), outbox.ErrUnavailable)
}
