package rabbitbroker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	defaultInFlight = 256
	maxPrefetch     = 65535
	maxGroup        = 100
)

// Factory makes RabbitMQ brokers.
func Factory() broker.Factory {
	return broker.Factory{
		Name:         Name,
		Open:         open,
		Capabilities: broker.Capabilities{Ordering: broker.OrderByKey, DeliveryCount: true, Durable: true},
		Check: func(decode func(any) error) error {
			_, err := load(decode)
			return err
		},
	}
}

func load(decode func(any) error) (Config, error) {
	cfg := defaults()
	if err := decode(&cfg); err != nil {
		return cfg, err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("broker %s: %w", Name, err)
	}
	return cfg, nil
}

func open(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
	cfg, err := load(decode)
	if err != nil {
		return nil, err
	}
	return Open(ctx, cfg, opts)
}

// rabbit is one open broker.
type rabbit struct {
	cfg       Config
	opts      broker.Options
	log       *slog.Logger
	publish   *link
	consume   *link
	publisher *publisher

	mu     sync.Mutex
	closed bool
	subs   map[*subscriber]struct{}
	topics map[string][]broker.Subscription // declared groups
	work   sync.WaitGroup

	closing sync.Once
}

var _ broker.Broker = (*rabbit)(nil)

// Open connects with cfg. It fails when RabbitMQ does not answer before ctx ends, or at the first attempt.
func Open(ctx context.Context, cfg Config, opts broker.Options) (broker.Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.ClientName == "" {
		opts.ClientName = "oncemill"
	}
	b := &rabbit{
		cfg:    cfg,
		opts:   opts,
		log:    opts.Logger.With("broker", Name),
		subs:   map[*subscriber]struct{}{},
		topics: map[string][]broker.Subscription{},
	}
	b.publish = newLink(cfg, opts, opts.ClientName+" publish", b.log)
	b.consume = newLink(cfg, opts, opts.ClientName+" consume", b.log)
	b.publisher = &publisher{b: b, pool: newPool(b.publish)}
	if _, _, err := b.consume.get(ctx); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	return b, nil
}

// Capabilities says what RabbitMQ, as configured, promises.
func (b *rabbit) Capabilities() broker.Capabilities {
	caps := broker.Capabilities{
		Ordering:         broker.OrderByKey,
		RedeliveryReason: "RabbitMQ keeps a message until it is acked",
		DeliveryCount:    true,
		Durable:          true,
	}
	if b.cfg.QueueType == Classic {
		caps.Caveats = append(caps.Caveats, "A classic queue has one copy, on one node: messages are away while the node is, and lost with its disk.")
	} else if b.cfg.DeliveryLimit < limitNever {
		caps.Caveats = append(caps.Caveats, fmt.Sprintf("RabbitMQ drops a message after %d deliveries (delivery_limit), or dead-letters it where a policy says where to.", b.cfg.DeliveryLimit))
	}
	if b.cfg.Topology != Declare {
		caps.Caveats = append(caps.Caveats, "Operators own the topology: order needs x-single-active-consumer, and no loss needs durable queues without a low delivery limit; AMQP does not show either.")
	}
	return caps
}

// Publisher returns the publisher.
func (b *rabbit) Publisher() broker.Publisher { return b.publisher }

// Subscriber makes a subscriber. It does no I/O.
func (b *rabbit) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	sub, err := b.check(sub)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errClosed
	}
	s := newSubscriber(b, sub)
	b.subs[s] = struct{}{}
	return s, nil
}

func (b *rabbit) check(sub broker.Subscription) (broker.Subscription, error) {
	if err := envelope.ValidateTopic(sub.Topic); err != nil {
		return sub, err
	}
	if !validGroup(sub.Group) {
		return sub, fmt.Errorf("rabbitmq: group %.120q: 1 to %d letters, digits, '.', '_' and '-' are allowed", sub.Group, maxGroup)
	}
	if sub.InFlight == 0 {
		sub.InFlight = defaultInFlight
	}
	if sub.InFlight < 0 || sub.InFlight > maxPrefetch {
		return sub, fmt.Errorf("rabbitmq: %d messages in flight: 1 to %d are possible", sub.InFlight, maxPrefetch)
	}
	return sub, nil
}

func validGroup(group string) bool {
	if group == "" || len(group) > maxGroup {
		return false
	}
	for _, c := range group {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Declare makes, or verifies, the exchange of the topic and the queues of its groups.
func (b *rabbit) Declare(ctx context.Context, topic string, groups []broker.Subscription) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	groups = slices.Clone(groups)
	for i, sub := range groups {
		sub.Topic = topic
		checked, err := b.check(sub)
		if err != nil {
			return err
		}
		groups[i] = checked
	}
	return b.do(ctx, func() error {
		return b.onChannel(ctx, func(ch *amqp.Channel) error {
			if err := b.cfg.prepareExchange(ch, topic); err != nil {
				return err
			}
			for _, sub := range groups {
				if err := b.cfg.prepareQueue(ch, sub); err != nil {
					return err
				}
			}
			b.remember(topic, groups)
			return nil
		})
	})
}

func (b *rabbit) remember(topic string, groups []broker.Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, sub := range groups {
		same := func(known broker.Subscription) bool { return known.Group == sub.Group }
		if !slices.ContainsFunc(b.topics[topic], same) {
			b.topics[topic] = append(b.topics[topic], sub)
		}
	}
}

// known returns the groups of the topic that were declared here.
func (b *rabbit) known(topic string) []broker.Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.topics[topic])
}

// onChannel runs f on a channel of its own, of the connection that the broker's alarms do not block.
func (b *rabbit) onChannel(ctx context.Context, f func(*amqp.Channel) error) error {
	conn, _, err := b.consume.get(ctx)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("opening a channel: %w", err)
	}
	defer func() { _ = ch.Close() }()
	return f(ch)
}

// Ping makes the broker answer on a channel.
func (b *rabbit) Ping(ctx context.Context) error {
	err := b.do(ctx, func() error {
		return b.onChannel(ctx, func(*amqp.Channel) error { return nil })
	})
	if err != nil {
		return fmt.Errorf("rabbitmq: ping: %w", err)
	}
	return nil
}

// Close hands back what is in flight and closes the connections.
func (b *rabbit) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		b.closed = true
		subs := make([]*subscriber, 0, len(b.subs))
		for s := range b.subs {
			subs = append(subs, s)
		}
		b.mu.Unlock()
		for _, s := range subs {
			s.abandon()
		}
		patience := time.NewTimer(closeWithin)
		defer patience.Stop()
		for _, s := range subs {
			select {
			case <-s.done:
			case <-patience.C: // the network is stuck: the connection's end frees them all
				b.consume.close()
				<-s.done
			}
		}
		var links sync.WaitGroup
		links.Go(b.publish.close)
		links.Go(b.consume.close)
		links.Wait()
		b.work.Wait()
	})
	return nil
}

// start runs f in a goroutine that Close waits for; it returns false, and does not, once the broker is closed.
func (b *rabbit) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(f)
	return true
}

// do runs f, which may block on the connection without regard to ctx, and returns when f or ctx ends.
func (b *rabbit) do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	if !b.start(func() { done <- f() }) {
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forget is called by a subscriber that has ended.
func (b *rabbit) forget(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}
