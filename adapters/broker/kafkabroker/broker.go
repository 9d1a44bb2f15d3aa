package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// name is the adapter's name, for --broker and in deliveries.
const name = "kafka"

// ErrClosed is returned by everything that is called after Close.
var ErrClosed = errors.New("kafka: the broker is closed")

// Factory makes the adapter for Apache Kafka. Its configuration is Config.
func Factory() broker.Factory {
	return broker.Factory{
		Name: name, Keys: name,
		Capabilities: broker.Capabilities{
			Ordering: broker.OrderByKey, DeliveryCount: true, Durable: true, Transactions: transactionLimits(),
		},
		Open: func(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
			conf, err := configure(decode)
			if err != nil {
				return nil, err
			}
			return Open(ctx, conf, opts)
		},
		Check: func(decode func(any) error) error {
			_, err := configure(decode)
			return err
		},
	}
}

func configure(decode func(any) error) (Config, error) {
	conf := defaults()
	if err := decode(&conf); err != nil {
		return Config{}, err
	}
	return conf, conf.Validate()
}

// Broker is one connection to a Kafka cluster. Safe for concurrent use.
type Broker struct {
	conf   Config
	opts   broker.Options
	log    *slog.Logger
	client sarama.Client // metadata, topics and offsets; fetches and publishing have connections of their own
	facts  *topicFacts
	pub    *publisher

	calls sync.WaitGroup // library calls that may outlive the caller that gave up on them

	mu       sync.Mutex
	closed   bool // nothing new begins
	finished bool // nothing is asked of the cluster any more
	members  map[member]struct{}
}

// member is what takes part in a consumer group: Close drops what it has under way.
type member interface{ Close() error }

var _ broker.Broker = (*Broker)(nil)

// Open connects to the cluster that conf names. It fails with an error that says what to do when no broker answers before
// ctx ends; nothing is left open then.
func Open(ctx context.Context, conf Config, opts broker.Options) (*Broker, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.MaxPayload <= 0 {
		opts.MaxPayload = envelope.DefaultMaxPayload
	}
	clientConf, err := conf.newConfig(opts)
	if err != nil {
		return nil, err
	}
	client, err := sarama.NewClient(conf.Brokers, clientConf)
	if err != nil {
		return nil, conf.unreachable(err)
	}
	b := &Broker{
		conf: conf, opts: opts, client: client,
		log:     opts.Logger.With(slog.String("broker", name)),
		facts:   newTopicFacts(),
		members: map[member]struct{}{},
	}
	b.pub = newPublisher(b)
	if err := b.Ping(ctx); err != nil {
		return nil, errors.Join(conf.unreachable(err), b.Close())
	}
	return b, nil
}

// Publisher returns the publisher. It is closed with the broker.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber for one binding.
func (b *Broker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	if err := envelope.ValidateTopic(sub.Topic); err != nil {
		return nil, fmt.Errorf("kafka: subscription: %w", err)
	}
	if !groupPattern.MatchString(sub.Group) {
		return nil, fmt.Errorf("kafka: subscription: group %q: 1 to 100 letters, digits, '.', '_' and '-' are allowed", sub.Group)
	}
	if sub.InFlight <= 0 {
		sub.InFlight = defaultInFlight
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	s := newSubscriber(b, sub)
	b.members[s] = struct{}{}
	return s, nil
}

// Ping returns nil when a broker answers now.
func (b *Broker) Ping(ctx context.Context) error {
	if b.isClosed() {
		return ErrClosed
	}
	return b.within(ctx, func() error {
		if node := b.client.LeastLoadedBroker(); node != nil {
			if _, err := node.ApiVersions(&sarama.ApiVersionsRequest{}); err == nil {
				return nil
			}
			_ = node.Close()
		}
		return askAny(b.client)
	})
}

func (b *Broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *Broker) forget(m member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.members, m)
}

// Close hands back what subscribers have in flight, then closes publisher and connections. Safe to call twice.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	members := slices.Collect(maps.Keys(b.members))
	b.mu.Unlock()

	var stopping sync.WaitGroup
	for _, m := range members {
		stopping.Go(func() { _ = m.Close() })
	}
	stopping.Wait()
	b.pub.close()
	err := b.client.Close()
	b.mu.Lock()
	b.finished = true
	b.mu.Unlock()
	b.calls.Wait()
	return err
}
