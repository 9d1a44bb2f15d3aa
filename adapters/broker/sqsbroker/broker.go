package sqsbroker

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/awsconf"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	defaultInFlight = 256
	maxInFlight     = 65535
	maxGroup        = 100

	// dedupeWindow is the service's own.
	dedupeWindow = 5 * time.Minute
	// answerWithin is how long a request may take, beyond the time for which the service is asked to wait.
	answerWithin = 20 * time.Second
	// connections is how many requests of one process may be on their way without dialling anew.
	connections = 128
)

// Factory makes SQS brokers.
func Factory() broker.Factory {
	return broker.Factory{
		Name:         Name,
		Capabilities: broker.Capabilities{Ordering: broker.OrderByKey, OrderedBatch: true, DeliveryCount: true, DedupeWindow: dedupeWindow, Durable: true},
		Open:         open,
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

// sqsBroker is one open broker.
type sqsBroker struct {
	cfg       Config
	opts      broker.Options
	log       *slog.Logger
	transport *http.Transport
	client    *sqs.Client
	queues    *queues
	publisher *publisher

	life context.Context // ends with Close
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	subs   map[*subscriber]struct{}
	work   sync.WaitGroup

	closing sync.Once
}

var _ broker.Broker = (*sqsBroker)(nil)

// Open connects with cfg. It fails when the service does not answer before ctx ends, or after the SDK's attempts.
func Open(ctx context.Context, cfg Config, opts broker.Options) (broker.Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	b := &sqsBroker{cfg: cfg, opts: opts, log: opts.Logger.With(slog.String("broker", Name)), subs: map[*subscriber]struct{}{}}
	if err := b.connect(ctx); err != nil {
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	b.life, b.end = context.WithCancel(context.Background())
	b.queues = newQueues(cfg, b.client)
	b.publisher = newPublisher(b)
	if err := b.Ping(ctx); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("broker %s: %w: check region, endpoint, and that the SDK finds credentials", Name, err)
	}
	return b, nil
}

func (b *sqsBroker) connect(ctx context.Context) error {
	settings, transport, err := awsconf.Load(ctx, awsconf.Settings{Region: b.cfg.Region, Profile: b.cfg.Profile, Section: "brokers." + Name, Connections: connections})
	if err != nil {
		return err
	}
	b.transport = transport
	b.client = sqs.NewFromConfig(settings, func(o *sqs.Options) {
		o.HTTPClient = &http.Client{Transport: b.transport}
		if b.cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(b.cfg.Endpoint)
		}
	})
	return nil
}

// Capabilities says what the SQS broker, as configured, promises.
func (b *sqsBroker) Capabilities() broker.Capabilities {
	longest := b.queues.longest()
	caps := broker.Capabilities{
		Ordering:          broker.OrderByKey,
		OrderedBatch:      true,
		LongestRedelivery: longest,
		RedeliveryReason:  "the queue's retention period",
		DeliveryCount:     true,
		DedupeWindow:      dedupeWindow,
		Durable:           true,
		MaxPayload:        alwaysFits,
		Caveats: []string{
			fmt.Sprintf("Messages in flight of a process that dies wait %s (visibility) for their redelivery.", b.cfg.Visibility),
			fmt.Sprintf("SQS forgets a message that nobody settled within the queue's retention period, %s at most here.", longest),
			"A message that an operator's redrive policy moved to a dead-letter queue, and somebody moves back, comes again however old it is.",
			"The service itself takes 1 MiB for a message with its metadata: a larger one is set aside in the outbox.",
		},
	}
	if b.cfg.Topology == Off {
		caps.Caveats = append(caps.Caveats, "Operators own the topology: messages reach the groups whose queues there are.")
	}
	return caps
}

// Publisher returns the publisher.
func (b *sqsBroker) Publisher() broker.Publisher { return b.publisher }

// Subscriber makes a subscriber. It does no I/O.
func (b *sqsBroker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	if err := checkSubscription(&sub); err != nil {
		return nil, err
	}
	if _, err := b.queues.name(sub.Topic, sub.Group); err != nil {
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

// checkSubscription checks sub and gives it its defaults.
func checkSubscription(sub *broker.Subscription) error {
	if err := envelope.ValidateTopic(sub.Topic); err != nil {
		return err
	}
	if !validGroup(sub.Group) {
		return fmt.Errorf("sqs: group %.120q: 1 to %d letters, digits, '.', '_' and '-' are allowed", sub.Group, maxGroup)
	}
	if sub.InFlight == 0 {
		sub.InFlight = defaultInFlight
	}
	if sub.InFlight < 0 || sub.InFlight > maxInFlight {
		return fmt.Errorf("sqs: %d messages in flight: 1 to %d are possible", sub.InFlight, maxInFlight)
	}
	return nil
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

// Declare makes, or verifies, the queues of the topic's groups. Where the topic has other groups already it takes Config.Discover.
func (b *sqsBroker) Declare(ctx context.Context, topic string, groups []broker.Subscription) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	names := make([]string, 0, len(groups))
	for _, sub := range groups {
		sub.Topic = topic
		if err := checkSubscription(&sub); err != nil {
			return err
		}
		names = append(names, sub.Group)
	}
	return b.do(ctx, func(ctx context.Context) error { return b.queues.prepare(ctx, topic, names) })
}

// do runs f unless the broker is closed, and ends it when the broker closes.
func (b *sqsBroker) do(ctx context.Context, f func(context.Context) error) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return errClosed
	}
	b.work.Add(1)
	b.mu.Unlock()
	defer b.work.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.life, func() { cancel(errClosed) })()
	return f(ctx)
}

// Ping asks the service something.
func (b *sqsBroker) Ping(ctx context.Context) error {
	return b.do(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		in := &sqs.ListQueuesInput{MaxResults: aws.Int32(1)}
		if b.cfg.Prefix != "" {
			in.QueueNamePrefix = aws.String(b.cfg.Prefix)
		}
		_, err := b.client.ListQueues(ctx, in)
		if err != nil {
			return fmt.Errorf("sqs: %w", classify(err))
		}
		return nil
	})
}

// Close hands back what is in flight and closes the connections.
func (b *sqsBroker) Close() error {
	b.closing.Do(func() {
		b.mu.Lock()
		b.closed = true
		subs := make([]*subscriber, 0, len(b.subs))
		for s := range b.subs {
			subs = append(subs, s)
		}
		b.mu.Unlock()
		for _, s := range subs {
			s.GiveUp()
		}
		for _, s := range subs {
			_ = s.Close()
		}
		b.end()
		b.work.Wait()
		b.transport.CloseIdleConnections()
	})
	return nil
}

// forget is called by a subscriber that has ended.
func (b *sqsBroker) forget(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}
