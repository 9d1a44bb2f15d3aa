package app

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// consumer is one binding that runs: its subscriber, its lanes and its engine, or a flow where the keys are in the broker.
type consumer struct {
	binding
	sub broker.Subscriber
	// watched is sub, which a trial may look into.
	watched message.Subscriber
	lanes   *idempotency.Lanes
	engine  *idempotency.Engine
	flow    *flow
}

// newConsumer makes the parts of a binding; nothing is consumed yet.
func (a *App) newConsumer(b binding) (*consumer, error) {
	if b.inBroker() {
		flow, err := a.newFlow(b)
		return &consumer{binding: b, flow: flow}, err
	}
	sub, err := a.broker.Subscriber(b.subscription())
	if err != nil {
		return nil, fmt.Errorf("subscriber of binding %s: %w", b.name, err)
	}
	engine, err := idempotency.New(a.engineConfig(b))
	if err != nil {
		return nil, err
	}
	return &consumer{binding: b, sub: sub, watched: a.probes.watching(b.engine.Scope, sub), lanes: idempotency.NewLanes(), engine: engine}, nil
}

func (a *App) engineConfig(b binding) idempotency.Config {
	b.engine.Lease = a.probes.lease
	return idempotency.Config{
		Binding: b.engine, Keys: a.store.Keys(), Parking: a.store.Parking(), Elsewhere: a.elsewhere(b), Gate: &a.gate, Owner: a.owner,
		Logger: a.log, Observe: a.probes.observing(a.metrics.engine), Inject: a.tracing.Inject, Woken: a.wakeFeeder, Fault: a.probes.engine,
	}
}

// intake is what takes messages from the broker.
type intake interface {
	Consuming() error
	CaughtUp() <-chan struct{}
	Drain(ctx context.Context) error
}

func (c *consumer) intake() intake {
	if c.flow != nil {
		return c.flow.source
	}
	return c.sub
}

// route adds the binding to the router: one subscription, the lanes before it, the chain behind it.
func (c *consumer) route(router *message.Router, tracing *middleware.Tracing) {
	h := router.AddConsumerHandler(c.name, c.topic, c.lanes.Subscriber(c.watched), routed)
	h.AddMiddleware(middleware.Chain(tracing, c.engine)...)
}

// stop lets the running handlers finish, hands everything else back, and sees the acks out. When ctx ends, running handlers are cut
// off, and what they leave gets the time settling to reach the broker.
func (c *consumer) stop(ctx context.Context, settling time.Duration) error {
	if c.flow != nil {
		return c.flow.stop(ctx, c.name)
	}
	draining, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settling, cut) })()
	drained := make(chan error, 1)
	go func() { drained <- c.sub.Drain(draining) }()
	c.engine.Stop()
	err := c.engine.Wait(ctx)
	if err != nil {
		err = fmt.Errorf("binding %s: handlers were cut off: %w", c.name, err)
	}
	if drain := <-drained; drain != nil && err == nil {
		err = fmt.Errorf("binding %s: %w", c.name, drain)
	}
	return err
}
