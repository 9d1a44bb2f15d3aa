package app

import (
	"context"
	"errors"
	"fmt"
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
// else is handed back, all within the shutdown timeout; force, where not nil, cuts that short when it is closed. Open comes before, Close after it.
func (a *App) Run(ctx context.Context, force <-chan struct{}) error {
	if err := a.prepare(ctx); err != nil {
		return err
	}
	consumers, err := a.consumers()
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: a.cfg.ShutdownTimeout.Std()}, watermill.NewSlogLogger(a.log))
	if err != nil {
		return fmt.Errorf("make the router: %w", err)
	}
	for _, c := range consumers {
		c.route(router, a.tracing)
	}
	feeder, err := a.newFeeder(consumers)
	if err != nil {
		return err
	}
	a.feeder = feeder
	relay, err := a.newRelay()
	if err != nil {
		return err
	}

	// What serves the handlers lives until they have finished; only the router's subscriptions end with ctx.
	service, endService := context.WithCancel(context.WithoutCancel(ctx))
	defer endService()
	var background errgroup.Group
	background.Go(func() error { return feeder.Run(ctx) })
	background.Go(func() error { return a.cleaner(consumers).run(ctx) })
	if relay != nil {
		background.Go(func() error { return relay.Run(service) })
	}
	routed := make(chan error, 1)
	go func() { routed <- router.Run(service) }()
	a.state.consumers.Store(&consumers)
	a.log.Info("consuming", "service", a.cfg.Service, "broker", a.cfg.Broker, "database", a.cfg.Database, "bindings", len(consumers))

	var failed error
	select {
	case <-ctx.Done():
	case err := <-routed:
		failed = fmt.Errorf("the router ended by itself: %w", orClosed(err))
		routed <- nil
	}
	a.state.stopping.Store(true)
	a.log.Info("stopping", "grace", a.cfg.ShutdownTimeout.Std())
	stopped := a.stop(force, consumers)
	endService()
	return errors.Join(failed, stopped, <-routed, background.Wait())
}

// stop stops all consumers at the same time, within the shutdown timeout.
func (a *App) stop(force <-chan struct{}, consumers []*consumer) error {
	grace := a.cfg.ShutdownTimeout.Std()
	ctx, cancel := context.WithTimeout(context.Background(), grace-min(grace/10, time.Second))
	defer cancel()
	if force != nil {
		go func() {
			select {
			case <-force:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	var group errgroup.Group
	for _, c := range consumers {
		group.Go(func() error { return c.stop(ctx) })
	}
	return group.Wait()
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
	for topic, groups := range a.topology() {
		if err := a.broker.Declare(ctx, topic, groups); err != nil {
			return fmt.Errorf("declare topic %s: %w", topic, err)
		}
	}
	return a.preflight(ctx)
}

// topology lists every topic with the groups that consume it: those of the bindings, and those that plugins publish to.
func (a *App) topology() map[string][]broker.Subscription {
	topics := map[string][]broker.Subscription{}
	for _, b := range a.bindings {
		topics[b.topic] = append(topics[b.topic], b.subscription())
		for _, topic := range b.plugin.Publishes {
			topics[topic] = append(topics[topic], []broker.Subscription(nil)...)
		}
	}
	return topics
}

func (a *App) consumers() ([]*consumer, error) {
	var all []*consumer
	for _, b := range a.bindings {
		c, err := a.newConsumer(b)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// newFeeder makes the feeder that gives due rows to the engine of their binding.
func (a *App) newFeeder(consumers []*consumer) (*parking.Feeder, error) {
	engines := map[string]*idempotency.Engine{}
	var scopes []string
	for _, c := range consumers {
		engines[c.binding.engine.Scope] = c.engine
		scopes = append(scopes, c.binding.engine.Scope)
	}
	return parking.NewFeeder(parking.FeederConfig{
		Store: a.store.Parking(), Scopes: scopes, Concurrency: a.cfg.Feeder.Concurrency, Logger: a.log,
		StopTimeout: a.cfg.ShutdownTimeout.Std(),
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

// newRelay makes the relay, or nil where the configuration leaves it to other processes.
func (a *App) newRelay() (*outbox.Relay, error) {
	if !a.cfg.Relay.Enabled {
		return nil, nil
	}
	return outbox.NewRelay(outbox.RelayConfig{
		Source: a.store.Outbox(), Publisher: a.broker.Publisher(), Owner: a.owner, Logger: a.log,
		OrderedBatch: a.broker.Capabilities().OrderedBatch,
		Batch:        a.cfg.Relay.Batch, Poll: a.cfg.Relay.Poll.Std(), MaxAttempts: a.cfg.Relay.MaxAttempts,
		MaxPayload: a.cfg.MaxPayload, Observer: a.metrics.relay(),
	})
}
