package sqsbroker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/internal/draining"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// closeWithin bounds what a subscriber that hands back waits for the service.
const closeWithin = 5 * time.Second

// subscriber consumes one queue. Its goroutines, all of which run waits for: some receive; feed hands messages over; flush
// brings settlements to the service; keepAlive extends what is held; one for each message in flight waits for its verdict.
type subscriber struct {
	*draining.Life
	b       *sqsBroker
	sub     broker.Subscription
	log     *slog.Logger
	session string
	since   time.Time

	out   chan *message.Message
	quiet chan struct{} // closed when no more messages can come

	queued  chan struct{} // the queue has changed, or a group is free
	freed   chan struct{} // a place is free
	settled chan struct{} // there are verdicts to bring to the service

	settlers sync.WaitGroup

	mu       sync.Mutex
	held     map[*delivery]struct{} // all that is in our hands
	asked    int                    // places that receivers have asked messages for
	queue    []*delivery            // of what is held, what waits to be handed over, as it came
	busy     map[string]*delivery   // by message group, what was handed over and is not settled
	verdicts []*delivery            // what waits to be settled at the service
	old      int                    // messages that came and had stood in the queue at Subscribe
}

var _ broker.Subscriber = (*subscriber)(nil)

func newSubscriber(b *sqsBroker, sub broker.Subscription) *subscriber {
	s := &subscriber{
		b: b, sub: sub, held: map[*delivery]struct{}{}, busy: map[string]*delivery{},
		session: b.opts.ClientName + "/" + envelope.NewUUID(),
		log:     b.log.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out:     make(chan *message.Message),
		quiet:   make(chan struct{}),
		queued:  make(chan struct{}, 1), freed: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
	s.Life = draining.New(sub, func() { b.forget(s) })
	return s
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.Begin(ctx, topic, s.run); err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	return s.out, nil
}

// run owns the subscriber's goroutines and closes the channel when all is settled.
func (s *subscriber) run() {
	s.since = time.Now()
	// What asks for messages is let end by itself: the answer of a broken-off request may be messages that nobody then
	// has. It, and what settles, goes on until closeWithin after an abandon.
	working, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	var helpers sync.WaitGroup
	helpers.Go(func() {
		select {
		case <-s.Abandoned():
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
	close(s.out)
	s.End()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
