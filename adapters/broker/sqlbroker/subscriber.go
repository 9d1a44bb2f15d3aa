package sqlbroker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/internal/draining"
)

// closeWithin bounds what a subscriber that hands back waits for the server.
const closeWithin = 3 * time.Second

// subscriber consumes for one group, over one holding after the other. Its goroutines, all of which run waits for: feed hands messages
// over; flush brings settlements to the server; consume claims; one for each message in flight waits for its verdict.
type subscriber struct {
	*draining.Life
	b   *sqlBroker
	sub broker.Subscription
	log *slog.Logger

	out   chan *message.Message
	quiet chan struct{} // closed when no more messages can come

	wake    chan struct{} // there may be messages to claim
	queued  chan struct{} // the queue has changed
	recall  chan struct{} // what is offered to handlers may have to wait
	freed   chan struct{} // a place is free
	settled chan struct{} // there are verdicts to bring to the server

	settlers sync.WaitGroup

	mu       sync.Mutex
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
	s := &subscriber{
		b: b, sub: sub, held: map[int64]*delivery{},
		log:   b.log.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out:   make(chan *message.Message),
		quiet: make(chan struct{}),
		wake:  make(chan struct{}, 1), queued: make(chan struct{}, 1), recall: make(chan struct{}, 1), freed: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
	s.Life = draining.New(sub, func() { b.forget(s) })
	return s
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.Begin(ctx, topic, s.run); err != nil {
		return nil, fmt.Errorf("sql: %w", err)
	}
	return s.out, nil
}

// run owns the subscriber's goroutines and closes the channel when all is settled.
func (s *subscriber) run() {
	// What asks the server for messages ends with the stop; what settles goes on until closeWithin after an abandon.
	asking, cancelAsking := context.WithCancel(context.Background())
	settling, cancelSettling := context.WithCancel(context.Background())
	defer cancelSettling()
	var helpers sync.WaitGroup
	ended := make(chan struct{})
	helpers.Go(func() {
		<-s.Stopping()
		cancelAsking()
		select {
		case <-s.Abandoned():
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
	close(s.out)
	s.End()
}
