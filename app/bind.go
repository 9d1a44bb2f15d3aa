package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
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

// binding is one handler of the running configuration, with everything that the engine, the broker and the start-up gate must know.
type binding struct {
	plugin handlers.Plugin
	decl   handlers.Binding
	engine idempotency.Binding
	name   string
	topic  string
	group  string
	order  bool
	keySpec string
}

// scopeOf is the scope of a binding; group names its queue, consumer group or durable.
func scopeOf(service, name string) string { return service + "/" + name }

func groupOf(scope string) string {
	group := []byte(scope)
	for i, c := range group {
		if c == '/' {
			group[i] = '.'
		}
	}
	return string(group)
}

// bind opens the plugins and makes the bindings that the configuration enables. All problems are reported at once.
func bind(set Set, cfg *Config) ([]binding, error) {
	var all []binding
	var errs []error
	scopes := map[string]string{}
	for _, p := range set.Plugins {
		section := cfg.Plugins[p.Name]
		if !section.enabled() {
			continue
		}
		declared := handlers.NewBindings(p.Name)
		if err := p.Open(section.Decode, declared); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Name, err))
			continue
		}
		for _, decl := range declared.List() {
			b, enabled, err := bindOne(cfg, p, decl)
			if err != nil {
				errs = append(errs, fmt.Errorf("binding %s: %w", decl.Name, err))
				continue
			}
			if !enabled {
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

func parseKeys(key, missing, print string) (envelope.KeySource, envelope.MissingKey, envelope.Fingerprint, error) {
	source, err := envelope.ParseKeySource(key)
	if err != nil {
		return nil, "", nil, err
	}
	policy, err := envelope.ParseMissingKey(missing)
	if err != nil {
		return nil, "", nil, err
	}
	fingerprint, err := envelope.ParseFingerprint(print)
	return source, policy, fingerprint, err
}
