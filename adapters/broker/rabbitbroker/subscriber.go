package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
)

// subscriber consumes one queue over one session after another: a session is a channel with its consumer, and
// ends with them.
type subscriber struct {
	b     *rabbit
	sub   broker.Subscription
	queue string
	log   *slog.Logger

	out      chan *message.Message
	draining chan struct{} // closed: nothing new is handed over
	handBack chan struct{} // closed: nothing is waited for
	done     chan struct{} // closed: out is closed, the channel is closed
	nacks    *nacks
	backlog  *backlog

	// ctx ends when draining begins; it is for opening sessions.
	ctx    context.Context
	cancel context.CancelFunc

	mu         sync.Mutex
	unhook     func() bool // from the context of Subscribe
	subscribed bool
	state      error // what Consuming returns
	drained    error // what Drain returns
	drains     sync.Once
	abandons   sync.Once
	ends       sync.Once
}

var _ broker.Subscriber = (*subscriber)(nil)

var (
	errNotSubscribed = errors.New("rabbitmq: not subscribed")
	errStarting      = errors.New("rabbitmq: connecting")
	errStopping      = errors.New("rabbitmq: stopping")
)

func newSubscriber(b *rabbit, sub broker.Subscription) *subscriber {
	queue := b.cfg.queue(sub.Topic, sub.Group)
	s := &subscriber{
		b:        b,
		sub:      sub,
		queue:    queue,
		log:      b.log.With("topic", sub.Topic, "queue", queue),
		out:      make(chan *message.Message),
		draining: make(chan struct{}),
		handBack: make(chan struct{}),
		done:     make(chan struct{}),
		nacks:    newNacks(sub.InFlight),
		backlog:  newBacklog(),
		state:    errNotSubscribed,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Subscribe opens the first session before it returns, so that a queue which is missing or refused is an
// error here; a lost connection is not, it is opened again.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.sub.Topic {
		return nil, fmt.Errorf("rabbitmq: subscribing to %.50q by a subscriber of topic %s", topic, s.sub.Topic)
	}
	if err := s.claim(); err != nil {
		return nil, err
	}
	opened := make(chan error, 1)
	s.unhook = context.AfterFunc(ctx, s.drain)
	if !s.b.start(func() { s.run(opened) }) {
		s.end(nil)
		return nil, errClosed
	}
	select {
	case err := <-opened:
		if err != nil && permanent(err) {
			<-s.done
			return nil, fmt.Errorf("subscribing to %s: %w", topic, err)
		}
	case <-ctx.Done():
		s.abandon()
		return nil, ctx.Err()
	}
	return s.out, nil
}

// claim takes the one right to subscribe.
func (s *subscriber) claim() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return errStopping
	case s.subscribed:
		return errors.New("rabbitmq: a subscriber subscribes once")
	}
	s.subscribed, s.state = true, errStarting
	return nil
}

// run owns the subscriber's sessions until it is drained or abandoned. It tells opened of its first attempt, and ends
// where that was refused.
func (s *subscriber) run(opened chan<- error) {
	current, err := s.open()
	opened <- err
	if err != nil && permanent(err) {
		s.end(err)
		return
	}
	s.b.work.Go(s.watch)
	pause := backoffFirst
	for {
		if current != nil {
			s.setState(nil)
			began := time.Now()
			if err = current.run(); s.ctx.Err() != nil {
				s.end(err)
				return
			}
			if time.Since(began) > backoffMax {
				pause = backoffFirst
			}
		}
		s.setState(err)
		s.log.Warn("rabbitmq consumer lost", "err", err, "retry_in", pause)
		if sleep(s.ctx, jitter(pause)) != nil {
			s.end(nil)
			return
		}
		pause = min(2*pause, backoffMax)
		if current, err = s.open(); s.ctx.Err() != nil {
			if current != nil {
				current.close()
			}
			s.end(nil)
			return
		}
	}
}

func (s *subscriber) setState(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.state = err
	}
}

// end closes the subscriber; err is what a Drain that waited returns.
func (s *subscriber) end(err error) {
	s.ends.Do(func() {
		s.drain()
		if s.unhook != nil {
			s.unhook()
		}
		s.mu.Lock()
		s.drained = err
		s.mu.Unlock()
		close(s.out)
		close(s.done)
		s.b.forget(s)
	})
}

// drain begins a stop: nothing new is handed over.
func (s *subscriber) drain() {
	idle := false
	s.drains.Do(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.state = errStopping
		idle, s.subscribed = !s.subscribed, true
		s.cancel()
		close(s.draining)
	})
	if idle {
		s.end(nil)
	}
}

// abandon stops without waiting for what is in flight.
func (s *subscriber) abandon() {
	s.drain()
	s.abandons.Do(func() { close(s.handBack) })
}

// Drain stops and waits for what is in flight. Where the connection is lost meanwhile it says so: then
// messages that were settled may come again.
func (s *subscriber) Drain(ctx context.Context) error {
	s.drain()
	select {
	case <-s.done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.drained
	case <-ctx.Done():
	}
	s.abandon()
	<-s.done
	return ctx.Err()
}

// Close hands back what is in flight.
func (s *subscriber) Close() error {
	s.abandon()
	<-s.done
	return nil
}

// Consuming returns nil while the consumer is open at the broker.
func (s *subscriber) Consuming() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// CaughtUp is closed when the queue's backlog at Subscribe is settled.
func (s *subscriber) CaughtUp() <-chan struct{} { return s.backlog.caught }
