package rabbitbroker_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// A plain Watermill program reads what we publish, and we read what it publishes.
func TestPlainWatermill(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "plain")
	declare(t, b, topic, "g")

	plain := wamqp.NewDurablePubSubConfig(server.URL, wamqp.GenerateQueueNameConstant("plain"))
	sub, err := wamqp.NewSubscriber(plain, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { _ = sub.Close() }()
	theirs, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)

	ours := newMessage("ours")
	ours.Metadata.Set("name", "value")
	require.NoError(t, b.Publisher().Publish(topic, ours))
	got := next(t, theirs)
	require.True(t, ours.Equals(got))
	require.True(t, got.Ack())

	pub, err := wamqp.NewPublisher(plain, watermill.NopLogger{})
	require.NoError(t, err)
	defer func() { _ = pub.Close() }()
	foreign := newMessage("theirs")
	foreign.Metadata.Set("other", "value")
	require.NoError(t, pub.Publish(topic, foreign))
	_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	require.True(t, ours.Equals(next(t, msgs)))
	require.True(t, foreign.Equals(next(t, msgs)))
}
