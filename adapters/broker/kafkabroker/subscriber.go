package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"

	"github.com/oncemill/oncemill/adapters/broker"
)

const defaultInFlight = 256

var (
	errNotSubscribed = errors.New("kafka: not subscribed")
	errJoining       = errors.New("kafka: joining the consumer group")
)

// subscriber is a member of a consumer group. It joins again, with backoff, until it is drained.
type subscriber struct {
	*membership
	sub   broker.Subscription
	out   chan *message.Message
	slots *slots

	draining chan struct{} // closed when nothing more is to be handed over
	halt     chan struct{} // closed when what is in flight is handed back
	stopped  chan struct{} // closed when everything has ended
	caughtUp chan struct{}

	mu         sync.Mutex
	subscribed bool
	drained    bool
	halted     bool
	forgetCtx  func() bool
	gen        *generation
	changed    chan struct{} // closed and replaced when gen changes
	why        error         // why there is no generation
}

var _ broker.Subscriber = (*subscriber)(nil)

func newSubscriber(b *Broker, sub broker.Subscription) *subscriber {
	return &subscriber{
		membership: newMembership(b, sub), sub: sub,
		out: make(chan *message.Message), slots: newSlots(sub.InFlight),
		draining: make(chan struct{}), halt: make(chan struct{}), stopped: make(chan struct{}), caughtUp: make(chan struct{}),
		changed: make(chan struct{}),
		why:     errNotSubscribed,
	}
}

// Subscribe joins the group and begins to deliver. topic must be the subscription's.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.sub.Topic {
		return nil, fmt.Errorf("kafka: the subscriber is made for topic %s, not %s", s.sub.Topic, topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.drained:
		return nil, errStopping
	case s.subscribed:
		return nil, errors.New("kafka: the subscriber is subscribed already: make another one")
	}
	s.subscribed, s.why = true, errJoining
	s.forgetCtx = context.AfterFunc(ctx, func() { s.stopTaking() })
	go s.run()
	return s.out, nil
}

// Drain stops taking messages and waits until those in flight are settled and their offsets committed.
func (s *subscriber) Drain(ctx context.Context) error {
	if !s.stopTaking() {
		return nil
	}
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
	}
	s.handBack()
	<-s.stopped
	return ctx.Err()
}

// Close hands back what is in flight.
func (s *subscriber) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Drain(ctx)
	return nil
}

// stopTaking begins the drain; false when nothing was ever subscribed.
func (s *subscriber) stopTaking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drained {
		s.drained, s.why = true, errStopping
		close(s.draining)
		if !s.subscribed {
			close(s.stopped)
			s.b.forget(s)
		}
	}
	return s.subscribed
}

func (s *subscriber) handBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.halted {
		s.halted = true
		close(s.halt)
	}
}

// Consuming returns nil while this member has its place in the group, also one without a partition because others have them all.
func (s *subscriber) Consuming() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained || s.gen == nil {
		return s.why
	}
	return nil
}

// CaughtUp is closed once the group has settled what stood in the topic at Subscribe.
func (s *subscriber) CaughtUp() <-chan struct{} { return s.caughtUp }

// run is a member of the group until the subscriber is drained.
func (s *subscriber) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	workers.Go(func() { defer cancel(); s.awaitStop() })
	workers.Go(func() { s.watchBacklog(ctx, s.caughtUp) })

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for ctx.Err() == nil {
		started := time.Now()
		err := s.join(ctx, func() sarama.ConsumerGroupHandler { return &handler{s: s} })
		if ctx.Err() != nil {
			break
		}
		if time.Since(started) > time.Minute {
			pause.Reset()
		}
		s.setWhy(err)
		wait := pause.NextBackOff()
		s.log.Warn("kafka consumer group left; joining again", slog.String("topic", s.physical), slog.Duration("after", wait), slog.Any("err", err))
		select {
		case <-time.After(wait):
		case <-s.draining:
		}
	}
	cancel()
	workers.Wait()
	close(s.out)
	s.forgetCtx()
	s.b.forget(s)
	close(s.stopped)
}

// awaitStop returns when a drain has nothing left to wait for.
func (s *subscriber) awaitStop() {
	<-s.draining
	for {
		gen, changed := s.current()
		if gen == nil {
			return
		}
		select {
		case <-gen.settled:
			return
		case <-s.halt:
			return
		case <-changed:
		}
	}
}

func (s *subscriber) current() (*generation, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen, s.changed
}

func (s *subscriber) setGeneration(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen = g
	if !s.drained {
		s.why = errJoining
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *subscriber) setWhy(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drained && err != nil {
		s.why = err
	}
}

// handler is the library's view of one generation.
type handler struct {
	s *subscriber
	g *generation
}

var _ sarama.ConsumerGroupHandler = (*handler)(nil)

// Setup learns where the assigned partitions stand.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	select {
	case <-h.s.draining:
		return errStopping
	default:
	}
	g, err := newGeneration(h.s, session)
	if session.Context().Err() != nil && err != nil {
		return nil // the next rebalance has come already: it is no reason to leave the group
	}
	if err != nil {
		return err
	}
	h.g = g
	h.s.setGeneration(g)
	return nil
}

// ConsumeClaim hands over one partition's records until it is taken away.
func (h *handler) ConsumeClaim(_ sarama.ConsumerGroupSession, partition sarama.ConsumerGroupClaim) error {
	if h.g == nil {
		return nil
	}
	if c := h.g.claims[partition.Partition()]; c != nil {
		c.run(partition.Messages())
	}
	return nil
}

// Cleanup commits what was settled and lets the partitions go. The library calls it also when Setup failed.
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error {
	if h.g == nil {
		return nil
	}
	h.g.close()
	h.s.setGeneration(nil)
	return nil
}
