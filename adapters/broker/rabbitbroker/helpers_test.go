package rabbitbroker_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
)

const patience = 30 * time.Second

// config is the default configuration with this URL, made as the application makes it.
func config(url, queueType string) rabbitbroker.Config {
	return defaults(func(c *rabbitbroker.Config) { c.URL, c.QueueType = url, queueType })
}

// defaults returns the defaults that Factory hands to a decode function, changed.
func defaults(change func(*rabbitbroker.Config)) rabbitbroker.Config {
	var cfg rabbitbroker.Config
	_ = rabbitbroker.Factory().Check(func(target any) error {
		cfg = *target.(*rabbitbroker.Config)
		return nil
	})
	change(&cfg)
	return cfg
}

func open(t testing.TB, cfg rabbitbroker.Config) broker.Broker {
	t.Helper()
	b, err := rabbitbroker.Open(t.Context(), cfg, broker.Options{Logger: slog.New(slog.DiscardHandler), ClientName: t.Name()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func declare(t testing.TB, b broker.Broker, topic string, groups ...string) {
	t.Helper()
	subs := make([]broker.Subscription, len(groups))
	for i, group := range groups {
		subs[i] = broker.Subscription{Topic: topic, Group: group}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, b.Declare(ctx, topic, subs))
}

func subscribe(t testing.TB, b broker.Broker, sub broker.Subscription) (broker.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := b.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)
	return s, msgs
}

func next(t testing.TB, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, open := <-msgs:
		require.True(t, open, "the channel closed")
		return msg
	case <-time.After(patience):
		require.FailNow(t, "no message came")
		return nil
	}
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(uuid.NewString(), []byte(payload))
}

// channel is a plain AMQP channel.
func channel(t testing.TB, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

// foreign publishes as a program without Watermill does.
func foreign(t testing.TB, url, topic string, p amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Confirm(false))
	p.DeliveryMode = amqp.Persistent
	confirm, err := ch.PublishWithDeferredConfirm(topic, "", true, false, p)
	require.NoError(t, err)
	require.True(t, confirm.Wait())
}
