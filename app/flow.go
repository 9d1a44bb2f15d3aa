package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/transact"
)

// flow is a binding that runs in the broker's own transactions.
type flow struct {
	source transact.Source
	work   *idempotency.Flow
}

// transactions returns the broker as one with transactions of its own. The start-up gate has refused others.
func (a *App) transactions() (broker.Transactional, error) {
	b, ok := a.broker.(broker.Transactional)
	if !ok {
		return nil, fmt.Errorf("%s has no transactions of its own", a.cfg.Broker)
	}
	return b, nil
}

func (a *App) newFlow(b binding) (*flow, error) {
	transactions, err := a.transactions()
	if err != nil {
		return nil, err
	}
	source, err := transactions.Transactions(b.subscription(), b.engine.Retention)
	if err != nil {
		return nil, fmt.Errorf("source of binding %s: %w", b.name, err)
	}
	cfg := idempotency.FlowConfig{
		Config: a.engineConfig(b),
		Transform: func(ctx context.Context, out *idempotency.Outputs, msg *message.Message) error {
			return b.transform(ctx, out, msg)
		},
		Trace: func(ctx context.Context, msg *message.Message) (context.Context, func(error)) {
			ctx, span := a.tracing.Start(ctx, msg, b.topic, b.name)
			return ctx, func(err error) {
				if err != nil {
					span.SetStatus(codes.Error, err.Error())
				}
				span.End()
			}
		},
	}
	cfg.Binding.Handler = nil
	work, err := idempotency.NewFlow(cfg)
	if err != nil {
		return nil, err
	}
	return &flow{source: source, work: work}, nil
}

func (f *flow) start() error { return f.source.Start(f.work.Work) }

// stop lets the batches under way commit; when ctx ends they are dropped, and their messages come again.
func (f *flow) stop(ctx context.Context, binding string) error {
	if err := f.source.Drain(ctx); err != nil {
		return fmt.Errorf("binding %s: its last batches were not committed: %w", binding, err)
	}
	return nil
}

// routedOnes are the consumers that the router runs.
func routedOnes(consumers []*consumer) []*consumer {
	return slices.DeleteFunc(slices.Clone(consumers), func(c *consumer) bool { return c.flow != nil })
}

// baseScope returns the binding's scope of a scope in parking: rows of a binding with its keys in the broker are kept by shard.
func baseScope(scope string) string {
	base, _, _ := strings.Cut(scope, idempotency.ShardScope("", ""))
	return base
}

// declareKeys makes sure of what keeps the keys of bindings that have them in the broker.
func (a *App) declareKeys(ctx context.Context) error {
	for _, b := range a.bindings {
		if !b.inBroker() {
			continue
		}
		transactions, err := a.transactions()
		if err == nil {
			err = transactions.DeclareKeys(ctx, b.subscription())
		}
		if err != nil {
			return fmt.Errorf("declare the keys of binding %s: %w", b.name, err)
		}
	}
	return nil
}

// ranBefore reports whether a binding has left keys behind, wherever it keeps them.
func (a *App) ranBefore(ctx context.Context, b binding, scopes map[string]int64) (bool, error) {
	if !b.inBroker() {
		return scopes[b.engine.Scope] > 0, nil
	}
	transactions, err := a.transactions()
	if err != nil {
		return false, err
	}
	return transactions.Remembers(ctx, b.subscription())
}

// refuseStranded stops a binding whose keys were kept elsewhere before, while messages of that time still wait: nobody would run them.
func (a *App) refuseStranded(ctx context.Context) error {
	counts, err := a.store.Parking().Counts(ctx)
	if err != nil {
		return fmt.Errorf("count the parked messages: %w", err)
	}
	for _, b := range a.bindings {
		for _, n := range counts {
			stranded := n.State == parking.Waiting && baseScope(n.Scope) == b.engine.Scope && (n.Scope == b.engine.Scope) == b.inBroker()
			if stranded {
				return withCode(ExitRefused, fmt.Errorf("binding %s: %d messages wait in scope %s from when its keys were kept elsewhere than in %q: start it as before until they are done, then change keys",
					b.name, n.Rows, n.Scope, b.kept))
			}
		}
	}
	return nil
}
