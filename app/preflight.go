package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// promises are those of all bindings, on the broker and the database that are open.
func (a *App) promises() []Promise {
	g := ground{broker: a.cfg.Broker, database: a.cfg.Database, delivery: a.broker.Capabilities(), keys: a.store.Keys().Capabilities(),
		far: map[string]keystore.Capabilities{}}
	for name, far := range a.far {
		g.far[name] = far.Capabilities()
	}
	promises := make([]Promise, len(a.bindings))
	for i, b := range a.bindings {
		promises[i] = g.promise(b)
	}
	for i, b := range a.bindings {
		promises[i].resend(b, a.bindings, promises)
	}
	return promises
}

// refusals is why bindings must not start; nil where all may.
func refusals(promises []Promise) error {
	var errs []error
	for _, p := range promises {
		for _, why := range p.Refused {
			errs = append(errs, fmt.Errorf("binding %s: %s", p.Binding, why))
		}
	}
	return errors.Join(errs...)
}

// preflight refuses to start what cannot hold its promise, names what could be lost track of, and warns of the rest.
func (a *App) preflight(ctx context.Context) error {
	promises := a.promises()
	if err := refusals(promises); err != nil {
		return withCode(ExitRefused, err)
	}
	for i, p := range promises {
		a.bindings[i].engine.Retention = p.kept
	}
	a.warnRetries()
	scopes, err := a.store.Keys().Scopes(ctx)
	if err != nil {
		return fmt.Errorf("list the scopes in the database: %w", err)
	}
	if err := a.refuseLostPositions(ctx, scopes); err != nil {
		return err
	}
	if err := a.refuseStranded(ctx); err != nil {
		return err
	}
	a.warnAbandoned(scopes)
	return nil
}

// positioned is a broker that can forget where a consumer group stood.
type positioned interface {
	// CommittedOffsets reports whether the group has a position in the topic.
	CommittedOffsets(ctx context.Context, group, topic string) (bool, error)
}

// refuseLostPositions stops a binding that ran before, as its keys show, and has no position at the broker any more: it would begin at the
// oldest message, also at those whose keys are past their retention.
func (a *App) refuseLostPositions(ctx context.Context, scopes map[string]int64) error {
	broker, ok := a.broker.(positioned)
	if !ok || a.cfg.Replay {
		return nil
	}
	var errs []error
	for _, b := range a.bindings {
		ran, err := a.ranBefore(ctx, b, scopes)
		if err != nil {
			return err
		}
		if !ran {
			continue
		}
		known, err := broker.CommittedOffsets(ctx, b.group, b.topic)
		if err != nil {
			return fmt.Errorf("look up the position of binding %s: %w", b.name, err)
		}
		if !known {
			errs = append(errs, fmt.Errorf("binding %s ran before, but %s has no committed offset of its group %s: it would begin at the oldest message of %s, also at those whose keys are gone after %s; reset the group's offsets, or start once with --set replay=true",
				b.name, a.cfg.Broker, b.group, b.topic, b.engine.Retention))
		}
	}
	return withCode(ExitRefused, errors.Join(errs...))
}

// warnRetries names bindings whose keys could be removed before a message's retries are over.
func (a *App) warnRetries() {
	for _, b := range a.bindings {
		if total := b.engine.Retry.Longest(); b.engine.Retention < total {
			a.log.Warn("retention is shorter than the retry schedule: a copy of a message that succeeds late can outlive its key",
				"scope", b.engine.Scope, "retention", b.engine.Retention, "retries", total)
		}
	}
}

// warnAbandoned names scopes in the database that no binding uses: a renamed binding starts with no keys.
func (a *App) warnAbandoned(scopes map[string]int64) {
	for scope, keys := range scopes {
		if a.bindingOf(scope) == "" && a.ours(scope) {
			a.log.Warn("a scope in the database is used by no binding: if a binding was renamed, set its scope to this one so that its keys stay known; if it was removed, see keys scopes",
				"scope", scope, "keys", keys)
		}
	}
}

// ours reports that a scope is named as those of this service's bindings are.
func (a *App) ours(scope string) bool { return strings.HasPrefix(scope, a.cfg.Service+"/") }

// bindingOf names the binding that uses a scope, or one of its shards; "" where none does.
func (a *App) bindingOf(scope string) string {
	for _, b := range a.bindings {
		if b.engine.Scope == scope || b.engine.Scope == baseScope(scope) {
			return b.name
		}
	}
	return ""
}
