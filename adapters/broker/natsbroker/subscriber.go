package natsbroker

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
	errNotSubscribed = errors.New("nats: not subscribed yet")
	errSubscribed    = errors.New("nats: a subscriber subscribes once")
	errStopping      = errors.New("nats: subscriber is stopping")
	errStopped       = errors.New("nats: subscriber has stopped")
	errStarting      = errors.New("nats: subscription is starting")
)

// subscriber consumes for one group. Four goroutines work for it, all of which run waits for: consume asks
// for messages, feed hands them over, keepAlive holds on to them, watchBacklog tells when the backlog is done;
// and one for each message in flight, which waits for its settlement.
type subscriber struct {
	b      *Broker
	sub    broker.Subscription
	logger *slog.Logger

	out      chan *message.Message
	stop     chan struct{} // closed when no more messages are to be taken
	abandon  chan struct{} // closed when what is in flight is to be handed back
	quiet    chan struct{} // closed when no more messages can arrive
	stopped  chan struct{} // closed when all is done
	caughtUp chan struct{}
	wake     chan struct{} // the queue has changed
	freed    chan struct{} // a slot is free
	recall   chan struct{} // what is offered to handlers may have to wait

	stopOnce, abandonOnce sync.Once
	settlers              sync.WaitGroup

	mu       sync.Mutex
	started  bool
	problem  error
	held     map[uint64]*delivery // by stream sequence: all that is in our hands
	queue    []*delivery          // of these, what is not handed over yet
	handed   int                  // of these, how many are handed over
	ackWait  time.Duration
	session  string
	sessions int
	identity string // of the stream
	marked   uint64 // what an embedded server may have forgotten that it delivered
	mark     *mark
	lost     bool // something could not be handed back
	offered  *offer
	order    *sequencer
	lease    *lease
}

var _ broker.Subscriber = (*subscriber)(nil)

func newSubscriber(b *Broker, sub broker.Subscription) *subscriber {
	s := &subscriber{
		b: b, sub: sub, problem: errNotSubscribed, held: map[uint64]*delivery{}, ackWait: b.cfg.AckWait,
		logger: b.logger.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out:    make(chan *message.Message),
		stop:   make(chan struct{}), abandon: make(chan struct{}), quiet: make(chan struct{}),
		stopped: make(chan struct{}), caughtUp: make(chan struct{}),
		wake: make(chan struct{}, 1), freed: make(chan struct{}, 1), recall: make(chan struct{}, 1),
	}
	if sub.Ordered {
		s.order = &sequencer{}
	}
	return s
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic != s.sub.Topic {
		return nil, fmt.Errorf("nats: this subscriber is for topic %s, not for %q", s.sub.Topic, topic)
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
	working, cancel := context.WithCancel(context.Background())
	defer cancel()
	// What asks the server for anything ends with the stop; what settles goes on.
	asking, cancelAsking := context.WithCancel(working)
	defer cancelAsking()

	var helpers sync.WaitGroup
	helpers.Go(func() { s.keepAlive(working) })
	helpers.Go(func() { s.watchBacklog(asking) })
	var feeding sync.WaitGroup
	feeding.Go(s.feed)
	helpers.Go(func() {
		<-s.stop
		cancelAsking()
	})

	s.consume(asking)
	close(s.quiet)
	feeding.Wait()
	s.settlers.Wait()
	s.releaseLease()
	s.closeMark()
	cancel()
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
	s.abandonOnce.Do(func() { close(s.abandon) })
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

func (s *subscriber) isStopping() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Consuming returns nil while messages would be delivered now, or while another replica holds the lease of an
// ordered subscription and this one stands by.
func (s *subscriber) Consuming() error {
	s.mu.Lock()
	problem := s.problem
	s.mu.Unlock()
	if problem != nil {
		return problem
	}
	if up, _ := s.b.link.state(); !up {
		return errNoConnection
	}
	return nil
}

var errNoConnection = errors.New("nats: no connection to the server")

func (s *subscriber) setProblem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A stop is final, whatever a session that ends says later.
	if !errors.Is(s.problem, errStopping) || errors.Is(err, errStopped) {
		s.problem = err
	}
}

// CaughtUp is closed when what stood in the stream at Subscribe is settled.
func (s *subscriber) CaughtUp() <-chan struct{} { return s.caughtUp }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
