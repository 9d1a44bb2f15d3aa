package envelope_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// recorder is a publisher that keeps what it got and fails as told.
type recorder struct {
	err  error
	sent []*message.Message
}

func (r *recorder) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		r.sent = append(r.sent, envelope.Prepare(m))
	}
	return r.err
}

func (r *recorder) Close() error { return r.err }

func TestPublisherKeepsTheKeyOverRetries(t *testing.T) {
	t.Parallel()
	next := &recorder{err: errors.New("connection lost")}
	pub := envelope.NewPublisher(next, envelope.PublisherOptions{})
	msg := &message.Message{Payload: []byte("{}")}
	require.ErrorIs(t, pub.Publish("orders", msg), next.err)
	next.err = nil
	require.NoError(t, pub.Publish("orders", msg))
	require.NoError(t, pub.Close())

	require.Len(t, next.sent, 2)
	first, second := next.sent[0], next.sent[1]
	require.NotEmpty(t, first.UUID)
	require.Equal(t, first.UUID, second.UUID)
	require.Equal(t, first.Metadata, second.Metadata)
	key, err := uuid.Parse(first.Metadata["idempotency-key"])
	require.NoError(t, err)
	require.Equal(t, uuid.Version(7), key.Version())
	require.NotEqual(t, first.UUID, key.String(), "a message's UUID is not its key")
}

// flaky fails as long as it has errors.
type flaky struct {
	recorder
	errs []error
}

func (f *flaky) Publish(topic string, messages ...*message.Message) error {
	_ = f.recorder.Publish(topic, messages...)
	if len(f.errs) == 0 {
		return nil
	}
	err := f.errs[0]
	f.errs = f.errs[1:]
	return err
}

func TestPublisherTriesAgainUnderTheSameIdentities(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	next := &flaky{errs: []error{lost, lost}}
	pub := envelope.NewPublisher(next, envelope.PublisherOptions{Attempts: 3, Wait: time.Millisecond})
	require.NoError(t, pub.Publish("orders", &message.Message{Payload: []byte("1")}, &message.Message{Payload: []byte("2")}))
	require.Len(t, next.sent, 6, "all messages of the call go again: nobody knows which of them the broker has")
	for i, msg := range next.sent {
		require.Equal(t, next.sent[i%2].UUID, msg.UUID)
		require.Equal(t, next.sent[i%2].Metadata, msg.Metadata)
		require.Equal(t, next.sent[i%2].Payload, msg.Payload)
	}
	require.NotEqual(t, next.sent[0].Metadata, next.sent[1].Metadata)

	next = &flaky{errs: []error{lost, lost, io.ErrUnexpectedEOF, lost}}
	pub = envelope.NewPublisher(next, envelope.PublisherOptions{Attempts: 3, Wait: time.Millisecond})
	require.ErrorIs(t, pub.Publish("orders", received("1")), io.ErrUnexpectedEOF, "the last error")
	require.Len(t, next.sent, 3)
}

func TestPublisherGivesUpEarly(t *testing.T) {
	t.Parallel()
	opts := envelope.PublisherOptions{Attempts: 1000, Wait: time.Hour}
	never := fmt.Errorf("refused: %w", &envelope.Violation{Rule: envelope.RulePayloadTooLarge})
	next := &flaky{errs: []error{never}}
	require.ErrorIs(t, envelope.NewPublisher(next, opts).Publish("orders", received("1")), never, "no attempt mends it")
	require.Len(t, next.sent, 1)

	lost, gone := errors.New("connection lost"), errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	next = &flaky{errs: []error{lost}}
	second := received("2")
	second.SetContext(ctx)
	ended := make(chan error, 1)
	go func() { ended <- envelope.NewPublisher(next, opts).Publish("orders", received("1"), second) }()
	cancel(gone)
	err := <-ended
	require.ErrorIs(t, err, lost)
	require.ErrorIs(t, err, gone)
	require.Len(t, next.sent, 2)
}

func TestPublisherComposesAndKeepsKeys(t *testing.T) {
	t.Parallel()
	next := &recorder{}
	pub := envelope.NewPublisher(next, envelope.PublisherOptions{Key: func(topic string, msg *message.Message) (string, error) {
		return envelope.Compose("order", msg.Metadata["order-id"], "creation")
	}})
	given := received("{}", "idempotency-key", "mine", "traceparent", "00-1-2-01", "baggage", "a=b")
	require.NoError(t, pub.Publish("orders", received("{}", "order-id", "17"), given))
	require.Equal(t, "order-17-creation", next.sent[0].Metadata["idempotency-key"])
	require.Equal(t, message.Metadata{"idempotency-key": "mine", "traceparent": "00-1-2-01", "baggage": "a=b"}, next.sent[1].Metadata)

	err := pub.Publish("orders", received("{}", "order-id", "18"), received("{}"))
	requireRule(t, envelope.RuleKeyEmpty, err)
	require.Len(t, next.sent, 2, "nothing is sent before everything is checked")
}

func TestPublisherValidates(t *testing.T) {
	t.Parallel()
	next := &recorder{}
	pub := envelope.NewPublisher(next, envelope.PublisherOptions{Limits: envelope.Limits{MaxPayload: 2}})
	requireRule(t, envelope.RuleTopicInvalid, pub.Publish("a b", received("")))
	requireRule(t, envelope.RuleMetadataReserved, pub.Publish("a", received("", "_watermill_x", "1")))
	requireRule(t, envelope.RulePayloadTooLarge, pub.Publish("a", received("123")))
	requireRule(t, envelope.RuleKeyEmpty, pub.Publish("a", received("", "idempotency-key", "")))
	require.Empty(t, next.sent)
}

func TestDecoratorInAWatermillRouter(t *testing.T) {
	t.Parallel()
	channel := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddPublisherDecorators(envelope.Decorator(envelope.PublisherOptions{}))
	router.AddHandler("copy", "in", channel, "out", channel, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("", msg.Payload)}, nil
	})
	out, err := channel.Subscribe(t.Context(), "out")
	require.NoError(t, err)
	go func() { _ = router.Run(t.Context()) }()
	<-router.Running()
	require.NoError(t, channel.Publish("in", received("x")))
	msg := <-out
	msg.Ack()
	require.NoError(t, envelope.ValidateKey(msg.Metadata["idempotency-key"]))
	require.NoError(t, router.Close())
}

func TestCompose(t *testing.T) {
	t.Parallel()
	key, err := envelope.Compose("order", "17", "creation")
	require.NoError(t, err)
	require.Equal(t, "order-17-creation", key)
	for _, parts := range [][]string{nil, {"order", "", "x"}, {" "}} {
		_, err := envelope.Compose(parts...)
		requireRule(t, envelope.RuleKeyEmpty, err)
	}
	_, err = envelope.Compose("a", strings.Repeat("x", 255))
	requireRule(t, envelope.RuleKeyTooLong, err)
}
