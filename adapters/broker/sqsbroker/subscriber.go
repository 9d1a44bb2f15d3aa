package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

var (
	errNotSubscribed = errors.New("sqs: not subscribed yet")
	errSubscribed    = errors.New("sqs: a subscriber subscribes once")
	errStarting      = errors.New("sqs: subscription is starting")
	errStopping      = errors.New("sqs: subscriber is stopping")
	errStopped       = errors.New("sqs: subscriber has stopped")
)

// closeWithin bounds what a subscriber that hands back waits for the service.
const closeWithin = 5 * time.Second

// subscriber consumes one queue. Its goroutines, all of which run waits for: some receive; feed hands messages over; flush
// brings settlements to the service; keepAlive extends what is held; one for each message in flight waits for its verdict.
type subscriber struct {
	b       *sqsBroker
	sub     broker.Subscription
	log     *slog.Logger
	session string
	since   time.Time

	out      chan *message.Message
	stop     chan struct{} // closed when no more messages are to be taken
	abandon  chan struct{} // closed when what is in flight is to be handed back
	quiet    chan struct{} // closed when no more messages can come
	stopped  chan struct{} // closed when all is done
	caughtUp chan struct{}

	queued  chan struct{} // the queue has changed, or a group is free
	freed   chan struct{} // a place is free
	settled chan struct{} // there are verdicts to bring to the service

	stopOnce, abandonOnce sync.Once
	settlers              sync.WaitGroup

	mu       sync.Mutex
	started  bool
	problem  error
	held     map[*delivery]struct{} // all that is in our hands
	asked    int                    // places that receivers have asked messages for
	queue    []*delivery            // of what is held, what waits to be handed over, as it came
	busy     map[string]*delivery   // by message group, what was handed over and is not settled
	verdicts []*delivery            // what waits to be settled at the service
	old      int                    // messages that came and had stood in the queue at Subscribe
}

var _ broker.Subscriber = (*subscriber)(nil)

func newSubscriber(b *sqsBroker, sub broker.Subscription) *subscriber {
	return &subscriber{
		b: b, sub: sub, problem: errNotSubscribed, held: map[*delivery]struct{}{}, busy: map[string]*delivery{},
		session: b.opts.ClientName + "/" + envelope.NewUUID(),
		log:     b.log.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out:     make(chan *message.Message), stop: make(chan struct{}), abandon: make(chan struct{}),
		quiet: make(chan struct{}), stopped: make(chan struct{}), caughtUp: make(chan struct{}),
		queued: make(chan struct{}, 1), freed: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.sub.Topic {
		return nil, fmt.Errorf("sqs: this subscriber is for topic %s, not for %.50q", s.sub.Topic, topic)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.started:
		return nil, errSubscribed
	case s.isStopping():
		return nil, errStopped
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	s.started, s.problem, s.since = true, errStarting, time.Now()
	go s.run(context.AfterFunc(ctx, s.stopTaking))
	return s.out, nil
}

// run owns the subscriber's goroutines and closes the channel when all is settled.
func (s *subscriber) run(release func() bool) {
	defer release()
	// What asks for messages is let end by itself: the answer of a broken-off request may be messages that nobody then
	// has. It, and what settles, goes on until closeWithin after an abandon.
	working, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	var helpers sync.WaitGroup
	helpers.Go(func() {
		select {
		case <-s.abandon:
		case <-ended:
			return
		}
		select {
		case <-time.After(closeWithin):
			cancel()
		case <-ended:
		}
	})
	var feeding, flushing sync.WaitGroup
	noMore, alive := make(chan struct{}), make(chan struct{})
	feeding.Go(s.feed)
	flushing.Go(func() { s.flush(working, noMore) })
	helpers.Go(func() { s.keepAlive(working, alive) })
	s.consume(working, &helpers)
	close(s.quiet)
	feeding.Wait()
	s.settlers.Wait()
	close(noMore)
	flushing.Wait()
	close(alive)
	close(ended)
	helpers.Wait()
	s.setProblem(errStopped)
	close(s.out)
	s.b.forget(s)
	close(s.stopped)
}

// Drain stops taking messages, and returns when what is in flight is settled, or handed back because ctx ended.
func (s *subscriber) Drain(ctx context.Context) error {
	s.stopTaking()
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	if !started {
		s.b.forget(s)
		return nil
	}
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
	}
	s.giveUp()
	<-s.stopped
	return fmt.Errorf("draining %s for %s: %w", s.sub.Topic, s.sub.Group, ctx.Err())
}

// Close hands back what is in flight.
func (s *subscriber) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Drain(ended); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *subscriber) stopTaking() {
	s.stopOnce.Do(func() {
		s.setProblem(errStopping)
		close(s.stop)
	})
}

// giveUp stops without waiting for what is in flight.
func (s *subscriber) giveUp() {
	s.stopTaking()
	s.abandonOnce.Do(func() { close(s.abandon) })
}

func (s *subscriber) isStopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Consuming returns nil while messages would be delivered now.
func (s *subscriber) Consuming() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

func (s *subscriber) setProblem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A stop is final, whatever comes to its end later says.
	if !errors.Is(s.problem, errStopping) || errors.Is(err, errStopped) {
		s.problem = err
	}
}

// CaughtUp is closed when what stood in the queue at Subscribe is settled.
func (s *subscriber) CaughtUp() <-chan struct{} { return s.caughtUp }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
