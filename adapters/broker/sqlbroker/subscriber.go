package sqlbroker

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

var (
	errNotSubscribed = errors.New("sql: not subscribed yet")
	errSubscribed    = errors.New("sql: a subscriber subscribes once")
	errStarting      = errors.New("sql: subscription is starting")
	errStopping      = errors.New("sql: subscriber is stopping")
	errStopped       = errors.New("sql: subscriber has stopped")
)

// closeWithin bounds what a subscriber that hands back waits for the server.
const closeWithin = 3 * time.Second

// subscriber consumes for one group, over one holding after the other. Its goroutines, all of which run waits for: feed hands messages
// over; flush brings settlements to the server; consume claims; one for each message in flight waits for its verdict.
type subscriber struct {
	b   *sqlBroker
	sub broker.Subscription
	log *slog.Logger

	out      chan *message.Message
	stop     chan struct{} // closed when no more messages are to be taken
	abandon  chan struct{} // closed when what is in flight is to be handed back
	quiet    chan struct{} // closed when no more messages can come
	stopped  chan struct{} // closed when all is done
	caughtUp chan struct{}

	wake    chan struct{} // there may be messages to claim
	queued  chan struct{} // the queue has changed
	recall  chan struct{} // what is offered to handlers may have to wait
	freed   chan struct{} // a place is free
	settled chan struct{} // there are verdicts to bring to the server

	stopOnce, abandonOnce sync.Once
	settlers              sync.WaitGroup

	mu       sync.Mutex
	started  bool
	problem  error
	held     map[int64]*delivery // by offset: all that is in our hands
	queue    []*delivery         // of these, what waits to be handed over, by offset
	verdicts []*delivery         // of these, what waits to be settled at the server
	offered  *offer              // what feed offers to the handlers now
	marked   bool                // the backlog's end is known
	mark     int64
}

var _ broker.Subscriber = (*subscriber)(nil)

// offer is a message that is offered to the handlers, until one took it or it was taken back.
type offer struct {
	d    *delivery
	over chan struct{}
}

func newSubscriber(b *sqlBroker, sub broker.Subscription) *subscriber {
	return &subscriber{
		b: b, sub: sub, problem: errNotSubscribed, held: map[int64]*delivery{},
		log: b.log.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out: make(chan *message.Message), stop: make(chan struct{}), abandon: make(chan struct{}),
		quiet: make(chan struct{}), stopped: make(chan struct{}), caughtUp: make(chan struct{}),
		wake: make(chan struct{}, 1), queued: make(chan struct{}, 1), recall: make(chan struct{}, 1), freed: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.sub.Topic {
		return nil, fmt.Errorf("sql: this subscriber is for topic %s, not for %.50q", s.sub.Topic, topic)
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
	s.started, s.problem = true, errStarting
	go s.run(context.AfterFunc(ctx, s.stopTaking))
	return s.out, nil
}

// run owns the subscriber's goroutines and closes the channel when all is settled.
func (s *subscriber) run(release func() bool) {
	defer release()
	// What asks the server for messages ends with the stop; what settles goes on until closeWithin after an abandon.
	asking, cancelAsking := context.WithCancel(context.Background())
	settling, cancelSettling := context.WithCancel(context.Background())
	defer cancelSettling()
	var helpers sync.WaitGroup
	ended := make(chan struct{})
	helpers.Go(func() {
		<-s.stop
		cancelAsking()
		select {
		case <-s.abandon:
		case <-ended:
			return
		}
		select {
		case <-time.After(closeWithin):
			cancelSettling()
		case <-ended:
		}
	})
	var feeding sync.WaitGroup
	feeding.Go(s.feed)
	s.consume(asking, settling)
	close(s.quiet)
	feeding.Wait()
	s.settlers.Wait()
	s.finish(s.takeVerdicts()) // of what was taken away meanwhile
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

// Consuming returns nil while messages would be delivered now, or while another replica is the active one of an
// ordered subscription and this one stands by.
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
