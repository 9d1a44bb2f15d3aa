package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/oncemill/oncemill/adapters/store"
)

// cleaner removes keys and dead letters after their retention, in small batches. A binding's keys are
// left alone until everything that was queued when it started is settled: a consumer that stood still for longer than the retention must
// not find its keys gone before its redeliveries.
type cleaner struct {
	store       store.Store
	consumers   []*consumer
	metrics     *metrics
	log         *slog.Logger
	every       time.Duration
	deadLetters time.Duration
}

// cleanBatch is how many rows one transaction removes.
const cleanBatch = 500

func (a *App) cleaner(consumers []*consumer) *cleaner {
	return &cleaner{
		store: a.store, consumers: consumers, metrics: a.metrics, log: a.log,
		every: a.cfg.Retention.CleanEvery.Std(), deadLetters: a.cfg.Retention.DeadLetters.Std(),
	}
}

// run cleans until ctx ends; it returns nil. Every replica runs it: batches skip rows that another one is removing.
func (c *cleaner) run(ctx context.Context) error {
	c.count(ctx)
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.round(ctx)
		}
	}
}

func (c *cleaner) round(ctx context.Context) {
	for _, consumer := range c.consumers {
		select {
		case <-consumer.intake().CaughtUp():
			scope := consumer.binding.engine.Scope
			c.batches(ctx, "keys", func(ctx context.Context) (int, error) {
				n, err := c.store.Keys().Clean(ctx, scope, cleanBatch)
				c.metrics.cleaned.WithLabelValues(scope).Add(float64(n))
				return n, err
			})
		default:
		}
	}
	c.batches(ctx, "dead letters", func(ctx context.Context) (int, error) {
		return c.store.Parking().Prune(ctx, c.deadLetters, cleanBatch)
	})
	c.count(ctx)
}

// batches removes batch after batch until one is not full, the round's time is over, or something fails.
func (c *cleaner) batches(ctx context.Context, what string, remove func(context.Context) (int, error)) {
	ctx, cancel := context.WithTimeout(ctx, c.every)
	defer cancel()
	for ctx.Err() == nil {
		n, err := remove(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("clean-up failed, trying again in the next round", "what", what, "err", err)
		}
		if err != nil || n < cleanBatch {
			return
		}
	}
}

// count tells the metrics how many messages are parked.
func (c *cleaner) count(ctx context.Context) {
	counts, err := c.store.Parking().Counts(ctx)
	if err != nil {
		return
	}
	c.metrics.parked.Reset()
	for _, n := range counts {
		c.metrics.parked.WithLabelValues(baseScope(n.Scope), string(n.State)).Add(float64(n.Rows))
	}
}
