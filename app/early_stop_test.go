package app

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

// A stop that comes while the application still subscribes is a stop like any other: the subscription that it prevents is no failure.
func TestAStopWhileSubscribingIsNoFailure(t *testing.T) {
	t.Parallel()
	subscribing := make(chan struct{})
	set := Builtin()
	for i, f := range set.Brokers {
		if f.Name == "embedded" {
			set.Brokers[i].Open = func(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
				b, err := f.Open(ctx, decode, opts)
				return slowBroker{b, sync.OnceFunc(func() { close(subscribing) })}, err
			}
		}
	}
	a := newConsole(t, set).application()
	require.NoError(t, a.Open(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		<-subscribing
		stop()
	}()
	require.NoError(t, a.Run(ctx, nil))
}

// slowBroker's subscribers subscribe until they are stopped.
type slowBroker struct {
	broker.Broker
	begun func()
}

func (b slowBroker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	s, err := b.Broker.Subscriber(sub)
	return &slowSubscriber{s, b.begun, make(chan struct{}), sync.Once{}}, err
}

type slowSubscriber struct {
	broker.Subscriber
	begun   func()
	drained chan struct{}
	once    sync.Once
}

func (s *slowSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	s.begun()
	<-s.drained
	return nil, errors.New("stopping")
}

func (s *slowSubscriber) Drain(ctx context.Context) error {
	s.once.Do(func() { close(s.drained) })
	return s.Subscriber.Drain(ctx)
}
