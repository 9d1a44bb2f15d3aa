package brokertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Watermill runs Watermill's own universal suite through the adapter. Each constructor call opens a replica; the
// suite's topics, whose names are longer than the message contract allows, are mapped to short ones.
//
// Its order tests allow one message in flight and know no ordering key. They run where order is declared, with one in
// flight and the payload as ordering key; the others run with many in flight.
func Watermill(t *testing.T, newHarness func(t *testing.T) Harness) {
	h := newHarness(t)
	features := tests.Features{
		ConsumerGroups: true,
		Persistent:     true,
		ForceShort:     h.FewMessages,
	}
	run, all := token(), newRubbish(t)
	construct := func(t *testing.T, sub broker.Subscription) (message.Publisher, message.Subscriber) {
		p := &pair{k: &kit{T: t, h: h, rubbish: all}, run: run, sub: sub, b: h.Open(t), declared: map[string]bool{}}
		t.Cleanup(func() { _ = p.b.Close() })
		return &watermillPublisher{pair: p}, &watermillSubscriber{pair: p}
	}
	tests.TestPubSub(t, features,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			return construct(t, broker.Subscription{Group: "all"})
		},
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return construct(t, broker.Subscription{Group: group})
		})

	features.GuaranteedOrder = true
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"TestPublishSubscribeInOrder": tests.TestPublishSubscribeInOrder,
		"TestNoAck":                   tests.TestNoAck,
	} {
		t.Run("Ordered/"+name, func(t *testing.T) {
			t.Parallel()
			probe := h.Open(t)
			caps := probe.Capabilities()
			require.NoError(t, probe.Close())
			if caps.Ordering != broker.OrderByKey {
				t.Skip("the broker declares no order by ordering key")
			}
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return construct(t, broker.Subscription{Group: "all", Ordered: true, InFlight: 1})
			})
		})
	}
}

// pair is the publisher and subscriber of one constructor call, on one broker, which
// closes when both are closed.
type pair struct {
	k   *kit
	run string
	sub broker.Subscription
	b   broker.Broker

	mu       sync.Mutex
	declared map[string]bool
	closed   [2]bool
}

func (p *pair) topic(long string) string {
	sum := sha256.Sum256([]byte(long))
	return "wm-" + p.run + "-" + hex.EncodeToString(sum[:8])
}

// declare declares the topic for the pair's group once, and returns its short name.
func (p *pair) declare(long string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	topic := p.topic(long)
	if !p.declared[topic] {
		p.k.declareAs(p.b, topic, p.sub.Ordered, p.sub.Group)
		p.declared[topic] = true
	}
	return topic
}

func (p *pair) close(side int) error {
	p.mu.Lock()
	p.closed[side] = true
	both := p.closed[0] && p.closed[1]
	p.mu.Unlock()
	if both {
		return p.b.Close()
	}
	return nil
}

type watermillPublisher struct{ pair *pair }

func (p *watermillPublisher) Publish(topic string, msgs ...*message.Message) error {
	if p.pair.sub.Ordered {
		for _, msg := range msgs {
			msg.Metadata.Set(envelope.OrderingKeyHeader, string(msg.Payload))
		}
	}
	return p.pair.b.Publisher().Publish(p.pair.topic(topic), msgs...)
}

func (p *watermillPublisher) Close() error { return p.pair.close(0) }

// watermillSubscriber subscribes as often as asked; a broker.Subscriber can do so once.
type watermillSubscriber struct {
	pair *pair

	mu   sync.Mutex
	subs []broker.Subscriber
}

func (s *watermillSubscriber) SubscribeInitialize(topic string) error {
	s.pair.declare(topic)
	return nil
}

func (s *watermillSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	short := s.pair.declare(topic)
	description := s.pair.sub
	description.Topic = short
	sub, err := s.pair.b.Subscriber(description)
	require.NoError(s.pair.k, err)
	s.mu.Lock()
	s.subs = append(s.subs, sub)
	s.mu.Unlock()
	return sub.Subscribe(ctx, short)
}

func (s *watermillSubscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if err := sub.Close(); err != nil {
			return err
		}
	}
	return s.pair.close(1)
}
