package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	defaultInFlight = 256
	maxInFlight     = 65535
	maxGroup        = 100
)

var errClosed = errors.New("sql: the broker is closed")

// Factory makes SQL brokers.
func Factory() broker.Factory {
	return broker.Factory{
		Name:         Name,
		Open:         open,
		Capabilities: broker.Capabilities{Ordering: broker.OrderByKey, OrderedBatch: true, DeliveryCount: true, Durable: true},
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

// sqlBroker is one open broker.
type sqlBroker struct {
	cfg       Config
	opts      broker.Options
	log       *slog.Logger
	server    server
	publisher *publisher
	bell      *bell

	life context.Context // ends with Close
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	subs   map[*subscriber]struct{}
	topics map[string][]string // groups declared or consumed here
	work   sync.WaitGroup

	closing sync.Once
}

var _ broker.Broker = (*sqlBroker)(nil)

// Open connects with cfg. It fails when the database does not answer before ctx ends, or at the first attempt.
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
	logger := opts.Logger.With(slog.String("broker", Name))
	db, err := connect(ctx, cfg, opts.ClientName, logger)
	if err != nil {
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	if err := db.ping(ctx); err != nil {
		db.close()
		return nil, fmt.Errorf("broker %s: %w", Name, err)
	}
	b := &sqlBroker{cfg: cfg, opts: opts, log: logger, server: db, subs: map[*subscriber]struct{}{}, topics: map[string][]string{}}
	b.life, b.end = context.WithCancel(context.Background())
	b.publisher = &publisher{b: b}
	b.bell = newBell(db, b.wake, logger)
	b.work.Go(func() { b.bell.notify(b.life) })
	b.work.Go(func() { b.bell.hear(b.life) })
	if cfg.Retention >= 0 {
		b.work.Go(b.keepClean)
	}
	return b, nil
}

// connect opens the kind of server that the connection string is for.
func connect(ctx context.Context, cfg Config, clientName string, logger *slog.Logger) (server, error) {
	dsn, err := cfg.dsn()
	if err != nil {
		return nil, err
	}
	if isMySQL(dsn) {
		return connectMySQL(cfg, clientName, logger)
	}
	return connectPostgres(ctx, cfg, clientName, logger)
}

// Capabilities says what the SQL broker, as configured, promises.
func (b *sqlBroker) Capabilities() broker.Capabilities {
	durable, caveats := b.server.keeps()
	caps := broker.Capabilities{
		Ordering:         broker.OrderByKey,
		OrderedBatch:     true,
		RedeliveryReason: "the tables keep a message until every group has settled it",
		DeliveryCount:    true,
		Durable:          durable,
		Caveats: []string{
			fmt.Sprintf("Messages in flight of a process that dies wait %s (visibility) for their redelivery.", b.cfg.Visibility),
			"A group that is declared and never consumes keeps every message of its topic.",
		},
	}
	caps.Caveats = append(caps.Caveats, caveats...)
	if b.cfg.Topology == Off {
		caps.Caveats = append(caps.Caveats, "Operators own the topology: a topic's messages reach a group only through the trigger on its table.")
	}
	return caps
}

// Publisher returns the publisher.
func (b *sqlBroker) Publisher() broker.Publisher { return b.publisher }

// Subscriber makes a subscriber. It does no I/O.
func (b *sqlBroker) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	if err := checkSubscription(&sub); err != nil {
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
		return fmt.Errorf("sql: group %.120q: 1 to %d letters, digits, '.', '_' and '-' are allowed", sub.Group, maxGroup)
	}
	if sub.InFlight == 0 {
		sub.InFlight = defaultInFlight
	}
	if sub.InFlight < 0 || sub.InFlight > maxInFlight {
		return fmt.Errorf("sql: %d messages in flight: 1 to %d are possible", sub.InFlight, maxInFlight)
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

// Declare makes, or verifies, the topic's table and the queues of its groups.
func (b *sqlBroker) Declare(ctx context.Context, topic string, groups []broker.Subscription) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	var names []string
	for _, sub := range groups {
		sub.Topic = topic
		if err := checkSubscription(&sub); err != nil {
			return err
		}
		names = append(names, sub.Group)
	}
	return b.do(ctx, func(ctx context.Context) error { return b.prepare(ctx, topic, names) })
}

func (b *sqlBroker) prepare(ctx context.Context, topic string, groups []string) error {
	if err := b.server.prepare(ctx, topic, groups); err != nil {
		return fmt.Errorf("sql: %w", b.server.classify(err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, group := range groups {
		if !slices.Contains(b.topics[topic], group) {
			b.topics[topic] = append(b.topics[topic], group)
		}
	}
	return nil
}

// known returns the groups of the topic that were declared here.
func (b *sqlBroker) known(topic string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.topics[topic])
}

// do runs f unless the broker is closed, and ends it when the broker closes.
func (b *sqlBroker) do(ctx context.Context, f func(context.Context) error) error {
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

// Ping asks the database something.
func (b *sqlBroker) Ping(ctx context.Context) error {
	return b.do(ctx, func(ctx context.Context) error {
		if err := b.server.ping(ctx); err != nil {
			return fmt.Errorf("sql: %w", err)
		}
		return nil
	})
}

// Close hands back what is in flight and closes the connections.
func (b *sqlBroker) Close() error {
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
		b.server.close()
	})
	return nil
}

// forget is called by a subscriber that has ended.
func (b *sqlBroker) forget(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}

// wake makes the topic's subscribers look for messages; "" all of them.
func (b *sqlBroker) wake(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subs {
		if topic == "" || s.sub.Topic == topic {
			signal(s.wake)
		}
	}
}

const (
	cleanEvery   = 20 * time.Second
	cleanTimeout = 5 * time.Minute
)

// keepClean deletes what is settled and past its retention, of the topics that are declared here.
func (b *sqlBroker) keepClean() {
	for {
		every := min(cleanEvery, max(b.cfg.Retention, time.Second))
		select {
		case <-b.life.Done():
			return
		case <-time.After(jitter(every)):
		}
		b.mu.Lock()
		topics := make([]string, 0, len(b.topics))
		for topic := range b.topics {
			topics = append(topics, topic)
		}
		b.mu.Unlock()
		for _, topic := range topics {
			ctx, cancel := context.WithTimeout(b.life, cleanTimeout)
			deleted, err := b.server.clean(ctx, topic, b.cfg.Retention)
			cancel()
			if err != nil && b.life.Err() == nil {
				b.log.Warn("settled messages were not deleted", slog.String("topic", topic), slog.Any("err", err))
			} else if deleted > 0 {
				b.log.Debug("settled messages were deleted", slog.String("topic", topic), slog.Int64("count", deleted))
			}
		}
	}
}
