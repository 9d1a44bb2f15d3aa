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
	"github.com/oncemill/oncemill/adapters/internal/draining"
)

// subscriber consumes for one group. Four goroutines work for it, all of which run waits for: consume asks
// for messages, feed hands them over, keepAlive holds on to them, watchBacklog tells when the backlog is done;
// and one for each message in flight, which waits for its settlement.
type subscriber struct {
	*draining.Life
	b      *Broker
	sub    broker.Subscription
	logger *slog.Logger

	out    chan *message.Message
	quiet  chan struct{} // closed when no more messages can arrive
	wake   chan struct{} // the queue has changed
	freed  chan struct{} // a slot is free
	recall chan struct{} // what is offered to handlers may have to wait

	settlers sync.WaitGroup

	mu       sync.Mutex
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
		b: b, sub: sub, held: map[uint64]*delivery{}, ackWait: b.cfg.AckWait,
		logger: b.logger.With(slog.String("topic", sub.Topic), slog.String("group", sub.Group)),
		out:    make(chan *message.Message),
		quiet:  make(chan struct{}),
		wake:   make(chan struct{}, 1), freed: make(chan struct{}, 1), recall: make(chan struct{}, 1),
	}
	s.Life = draining.New(sub, func() { b.forget(s) })
	if sub.Ordered {
		s.order = &sequencer{}
	}
	return s
}

// Subscribe starts delivering.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.Begin(ctx, topic, s.run); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	return s.out, nil
}

// run owns the subscriber's goroutines and closes the channel when all is settled.
func (s *subscriber) run() {
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
		<-s.Stopping()
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
	close(s.out)
	s.End()
}

// Consuming returns nil while messages would be delivered now, or while another replica holds the lease of an
// ordered subscription and this one stands by.
func (s *subscriber) Consuming() error {
	if err := s.Life.Consuming(); err != nil {
		return err
	}
	if up, _ := s.b.link.state(); !up {
		return errNoConnection
	}
	return nil
}

var errNoConnection = errors.New("nats: no connection to the server")

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
