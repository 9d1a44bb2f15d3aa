package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// state is what /readyz asks about.
type state struct {
	consumers atomic.Pointer[[]*consumer]
	stopping  atomic.Bool
}

// Run migrates, declares the topology, passes the start-up gate, and consumes until ctx ends. Then it stops gracefully: running handlers finish, everything
// else is handed back, all within the shutdown timeout; force, where not nil, cuts that short when it is closed. Open comes before, Close after
// it. Run is called once.
func (a *App) Run(ctx context.Context, force <-chan struct{}) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	consumers, err := a.consumers()
	if err != nil {
		return err
	}
	router, err := a.newRouter(routedOnes(consumers))
	if err != nil {
		return err
	}
	if a.feeder, err = a.newFeeder(consumers); err != nil { // before anything runs that wakes it
		return err
	}
	relays, err := a.newRelays()
	if err != nil {
		return err
	}

	// What serves the handlers lives until they have finished; what takes new work ends before.
	taking, stopTaking := context.WithCancel(ctx)
	defer stopTaking()
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	var background errgroup.Group
	if a.feeder != nil {
		background.Go(func() error { return a.feeder.Run(taking) })
	}
	background.Go(func() error { return a.cleaner(consumers).run(taking) })
	for _, relay := range relays {
		background.Go(func() error {
			defer stopTaking() // nobody would publish what is handled
			return relay.Run(serving)
		})
	}
	routed := make(chan error, 1)
	go func() { routed <- a.route(serving, router) }()
	a.state.consumers.Store(&consumers)
	a.log.Info("consuming", "service", a.cfg.Service, "broker", a.cfg.Broker, "database", a.cfg.Database, "bindings", len(consumers))

	failed := startFlows(consumers)
	if failed != nil {
		stopTaking()
	}
	select {
	case <-taking.Done():
	case err := <-routed:
		failed = fmt.Errorf("the router ended by itself: %w", orClosed(err))
		routed <- nil
	}
	subscribed := isClosed(router.Running())
	a.state.stopping.Store(true)
	a.log.Info("stopping", "grace", a.cfg.ShutdownTimeout.Std())
	stopTaking()
	stopped := a.stop(force, consumers)
	endServing()
	unrouted := <-routed
	if failed == nil && !subscribed {
		unrouted = nil // the stop came while it subscribed, which it could not any more
	}
	return errors.Join(failed, stopped, unrouted, background.Wait())
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// route runs the router until ctx ends; one without handlers would end at once.
func (a *App) route(ctx context.Context, router *message.Router) error {
	if len(router.Handlers()) == 0 {
		<-ctx.Done()
		return nil
	}
	return router.Run(ctx)
}

func startFlows(consumers []*consumer) error {
	for _, c := range consumers {
		if c.flow == nil {
			continue
		}
		if err := c.flow.start(); err != nil {
			return fmt.Errorf("start binding %s: %w", c.name, err)
		}
	}
	return nil
}

// closing is the part of the shutdown timeout that is left for router and relay, when the handlers have ended or are cut off.
func (a *App) closing() time.Duration {
	return min(max(a.cfg.ShutdownTimeout.Std()/5, 100*time.Millisecond), 5*time.Second)
}

// stop stops all consumers at the same time, within the shutdown timeout less closing.
func (a *App) stop(force <-chan struct{}, consumers []*consumer) error {
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.ShutdownTimeout.Std()-a.closing())
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-force: // for ever where there is none
			a.log.Warn("forced: what runs is cut off and handed back")
			cancel()
		case <-ended:
		}
	}()
	var group errgroup.Group
	for _, c := range consumers {
		group.Go(func() error { return c.stop(ctx, a.closing()/2) })
	}
	return group.Wait()
}

// newRouter makes the router with all consumers; nothing is consumed yet.
func (a *App) newRouter(consumers []*consumer) (*message.Router, error) {
	// The router calls it an error when a message is handed back. What went wrong is logged by those who know why.
	logger := watermill.NewSlogLoggerWithLevelMapping(a.log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug, slog.LevelError: slog.LevelDebug})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: a.closing()}, logger)
	if err != nil {
		return nil, fmt.Errorf("make the router: %w", err)
	}
	for _, c := range consumers {
		c.route(router, a.tracing)
	}
	return router, nil
}

func orClosed(err error) error {
	if err == nil {
		return errors.New("all subscriptions have ended")
	}
	return err
}

// prepare does what must be done before the first message.
func (a *App) prepare(ctx context.Context) error {
	if err := a.migrate(ctx); err != nil {
		return err
	}
	if err := a.declare(ctx); err != nil {
		return err
	}
	if err := a.preflight(ctx); err != nil {
		return err
	}
	return a.declareKeys(ctx)
}

// declare makes sure of every topic, always in the same order.
func (a *App) declare(ctx context.Context) error {
	topics := a.topology()
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		if err := a.broker.Declare(ctx, topic, topics[topic]); err != nil {
			return fmt.Errorf("declare topic %s: %w", topic, err)
		}
	}
	return nil
}

// topology lists every topic with the groups that consume it: those of the bindings, and those that plugins publish to.
func (a *App) topology() map[string][]broker.Subscription {
	topics := map[string][]broker.Subscription{}
	for _, b := range a.bindings {
		topics[b.topic] = append(topics[b.topic], b.subscription())
		for _, topic := range b.plugin.Publishes {
			if topics[topic] == nil {
				topics[topic] = []broker.Subscription{}
			}
		}
	}
	return topics
}

// consumers makes the consumers of the bindings that this process runs.
func (a *App) consumers() ([]*consumer, error) {
	var all []*consumer
	for _, b := range a.bindings {
		if len(a.only) > 0 && !slices.Contains(a.only, b.name) {
			continue
		}
		c, err := a.newConsumer(b)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// newFeeder makes the feeder that gives due rows to the engine of their binding; nil where all bindings keep their rows by shard.
func (a *App) newFeeder(consumers []*consumer) (*parking.Feeder, error) {
	engines := map[string]*idempotency.Engine{}
	var scopes []string
	for _, c := range routedOnes(consumers) {
		engines[c.binding.engine.Scope] = c.engine
		scopes = append(scopes, c.binding.engine.Scope)
	}
	if len(scopes) == 0 {
		return nil, nil
	}
	return parking.NewFeeder(parking.FeederConfig{
		Store: a.store.Parking(), Scopes: scopes, Concurrency: a.cfg.Feeder.Concurrency, Logger: a.log,
		StopTimeout: a.cfg.ShutdownTimeout.Std() - a.closing(),
		Run: func(ctx context.Context, row parking.Leased) error {
			return engines[row.Scope].RunParked(ctx, row)
		},
	})
}

func (a *App) wakeFeeder() {
	if a.feeder != nil {
		a.feeder.Wake()
	}
}

// newRelays makes a relay for each outbox, or none where the configuration leaves that to other processes.
func (a *App) newRelays() ([]*outbox.Relay, error) {
	if !a.cfg.Relay.Enabled {
		return nil, nil
	}
	var relays []*outbox.Relay
	for _, p := range a.outboxes() {
		relay, err := outbox.NewRelay(outbox.RelayConfig{
			Source: p.source, Publisher: a.probes.publishing(a.broker.Publisher()), Owner: a.owner, Logger: a.log.With("outbox", p.where),
			OrderedBatch: a.broker.Capabilities().OrderedBatch,
			Batch:        a.cfg.Relay.Batch, Poll: a.cfg.Relay.Poll.Std(), MaxAttempts: a.cfg.Relay.MaxAttempts,
			MaxPayload: a.cfg.MaxPayload, Observer: a.metrics.relay(p.where), StopTimeout: a.closing(),
			Fault: a.probes.relay, Lease: a.probes.lease,
		})
		if err != nil {
			return nil, err
		}
		relays = append(relays, relay)
	}
	return relays, nil
}
