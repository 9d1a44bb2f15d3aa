package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Broker is a connection to NATS JetStream, external or embedded.
type Broker struct {
	name         string
	cfg          Config
	logger       *slog.Logger
	maxPayload   int
	pullBytes    int // most of one request
	link         *link
	topology     *topology
	publisher    *publisher
	capabilities broker.Capabilities
	// marks remembers, beyond a crash of an embedded server, what was handed over; nil for an external one.
	marks func(identity, durable string) (*mark, error)
	// after ends what the connection depends on, such as an embedded server.
	after func() error

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	done        chan struct{} // closed when Close begins
	closing     sync.Once
	closeErr    error
}

var _ broker.Broker = (*Broker)(nil)

func newBroker(name string, cfg Config, opts broker.Options, l *link) *Broker {
	b := &Broker{
		name: name, cfg: cfg, logger: opts.Logger, maxPayload: opts.MaxPayload, pullBytes: pullBytes, link: l,
		after: func() error { return nil }, subscribers: map[*subscriber]struct{}{}, done: make(chan struct{}),
	}
	if b.maxPayload <= 0 {
		b.maxPayload = envelope.DefaultMaxPayload
	}
	b.topology = &topology{cfg: &b.cfg, link: l, found: map[string]place{}}
	b.publisher = newPublisher(b)
	return b
}

// Capabilities says what this broker, as configured, promises.
func (b *Broker) Capabilities() broker.Capabilities { return b.capabilities }

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.publisher }

// Subscriber makes a subscriber of one group. Nothing is asked of the server before its Subscribe.
func (b *Broker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	if err := checkSubscription(&sub); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed() {
		return nil, errClosed
	}
	s := newSubscriber(b, sub)
	b.subscribers[s] = struct{}{}
	return s, nil
}

const (
	defaultInFlight = 256
	maxGroup        = 100
)

// checkSubscription checks sub and gives it its defaults.
func checkSubscription(sub *broker.Subscription) error {
	if err := envelope.ValidateTopic(sub.Topic); err != nil {
		return err
	}
	if len(sub.Group) == 0 || len(sub.Group) > maxGroup {
		return fmt.Errorf("group: has %d characters, 1 to %d are allowed", len(sub.Group), maxGroup)
	}
	for i := range len(sub.Group) {
		c := sub.Group[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return errors.New("group: only letters, digits, '.', '_' and '-' are allowed")
		}
	}
	if sub.InFlight < 0 {
		return fmt.Errorf("in flight: %d is negative", sub.InFlight)
	}
	if sub.InFlight == 0 {
		sub.InFlight = defaultInFlight
	}
	return nil
}

// Declare makes or checks the topic's stream and the groups' consumers.
func (b *Broker) Declare(ctx context.Context, topic string, groups []broker.Subscription) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	checked := make([]broker.Subscription, len(groups))
	for i, sub := range groups {
		sub.Topic = topic
		if err := checkSubscription(&sub); err != nil {
			return fmt.Errorf("declaring topic %s: %w", topic, err)
		}
		checked[i] = sub
	}
	for {
		if b.closed() {
			return errClosed
		}
		if err := b.link.await(ctx); err != nil {
			return fmt.Errorf("declaring topic %s: %w", topic, err)
		}
		_, change := b.link.state()
		err := b.declare(ctx, topic, checked)
		if err == nil {
			return nil
		}
		if isOutage(err) { // known here a moment before the connection's handler says so
			continue
		}
		select {
		case <-change: // the question was lost with its connection
		default:
			return fmt.Errorf("declaring topic %s: %w", topic, err)
		}
	}
}

func (b *Broker) declare(ctx context.Context, topic string, groups []broker.Subscription) error {
	ctx, cancel := b.link.during(ctx, declareTimeout)
	defer cancel()
	if err := b.topology.declareStream(ctx, topic); err != nil || b.cfg.Topology == topologyOff {
		return err
	}
	for _, sub := range groups {
		if _, err := b.topology.consumer(ctx, sub); err != nil {
			return fmt.Errorf("group %s: %w", sub.Group, err)
		}
	}
	return nil
}

// declareTimeout bounds what one topic takes.
const declareTimeout = 30 * time.Second

// Ping returns nil when JetStream answers now.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed() {
		return errClosed
	}
	return b.link.ping(ctx)
}

func (b *Broker) closed() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Close hands back what is in flight, and closes the connection.
func (b *Broker) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		close(b.done)
		b.mu.Unlock()
		var wg sync.WaitGroup
		for s := range b.subscribers {
			wg.Go(func() { _ = s.Close() })
		}
		wg.Wait()
		b.link.close()
		b.closeErr = b.after()
	})
	return b.closeErr
}

// forget drops a subscriber that has stopped.
func (b *Broker) forget(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed() {
		delete(b.subscribers, s)
	}
}
