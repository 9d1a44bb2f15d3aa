package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// transactional adapts a plugin's handler to the engine.
func transactional(h handlers.Handler) idempotency.Handler {
	return func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		return h(ctx, tx, msg)
	}
}

// external adapts a plugin's external handler to the engine.
func external(e handlers.External, policy handlers.UnknownPolicy) *idempotency.External {
	ext := &idempotency.External{
		Unknown: idempotency.UnknownPolicy(policy), Window: e.Window,
		Call: func(ctx context.Context, msg *message.Message, scope, key string) (any, error) {
			return e.Call(ctx, msg, handlers.NewKey(scope, key))
		},
	}
	if e.Record != nil {
		ext.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, result json.RawMessage) error {
			return e.Record(ctx, tx, msg, result)
		}
	}
	if e.Probe != nil {
		ext.Probe = func(ctx context.Context, msg *message.Message, scope, key string) (any, bool, error) {
			return e.Probe(ctx, msg, handlers.NewKey(scope, key))
		}
	}
	return ext
}

// routed is what Watermill's router calls behind the engine's middleware; the engine answers for every message itself.
func routed(*message.Message) error {
	return errors.New("the router called a handler past the engine")
}

// bind opens the plugins and makes the bindings that the configuration enables. All problems are reported at once.
func bind(set Set, cfg *config.Config) ([]binding, error) {
	var all []binding
	var errs []error
	scopes := map[string]string{}
	for _, p := range set.Plugins {
		section := cfg.Plugins[p.Name]
		if !section.On() {
			continue
		}
		declared := handlers.NewBindings(p.Name)
		if err := p.Open(section.Decode, declared); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name, err))
			continue
		}
		for _, decl := range declared.List() {
			if !cfg.Bindings[decl.Name].On() {
				continue
			}
			b, err := bindOne(cfg, p, decl)
			if err != nil {
				errs = append(errs, fmt.Errorf("binding %s: %w", decl.Name, err))
				continue
			}
			if other, taken := scopes[b.engine.Scope]; taken {
				errs = append(errs, fmt.Errorf("bindings %s and %s share the scope %q: a message would count for one of them only; give one another name or scope", other, b.name, b.engine.Scope))
			}
			scopes[b.engine.Scope] = b.name
			all = append(all, b)
		}
	}
	if len(errs) == 0 && len(all) == 0 {
		errs = append(errs, errors.New("no binding is enabled: nothing would be consumed"))
	}
	return all, errors.Join(errs...)
}
