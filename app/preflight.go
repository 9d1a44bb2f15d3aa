package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// promises are those of all bindings, on the broker and the database that are open.
func (a *App) promises() []Promise {
	g := ground{broker: a.cfg.Broker, database: a.cfg.Database, delivery: a.broker.Capabilities(), keys: a.store.Keys().Capabilities()}
	promises := make([]Promise, len(a.bindings))
	for i, b := range a.bindings {
		promises[i] = g.promise(b)
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
	return a.warnAbandoned(ctx)
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
func (a *App) warnAbandoned(ctx context.Context) error {
	scopes, err := a.store.Keys().Scopes(ctx)
	if err != nil {
		return fmt.Errorf("list the scopes in the database: %w", err)
	}
	for _, b := range a.bindings {
		delete(scopes, b.engine.Scope)
	}
	for scope, keys := range scopes {
		if strings.HasPrefix(scope, a.cfg.Service+"/") {
			a.log.Warn("a scope in the database is used by no binding: if a binding was renamed, set its scope to this one so that its keys stay known",
				"scope", scope, "keys", keys)
		}
	}
	return nil
}
