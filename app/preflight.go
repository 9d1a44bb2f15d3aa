package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Promise is what is promised for one binding of the running configuration.
type Promise struct {
	Binding string   `json:"binding"`
	Scope   string   `json:"scope"`
	Topic   string   `json:"topic"`
	Kind    string   `json:"kind"` // transactional or external
	Holds   string   `json:"holds"`
	Because []string `json:"because"`
	// Breaks says what could break the promise, outside Oncemill's reach.
	Breaks []string `json:"breaks"`
	// Refused says why the binding must not start like this; empty where it may.
	Refused []string `json:"refused"`
	// Plugin is the plugin's own text.
	Plugin string `json:"plugin"`
}

// promises computes the guarantee of each binding from the capabilities of broker and store.
func (a *App) promises() []Promise {
	caps, keys := a.broker.Capabilities(), a.store.Keys().Capabilities()
	promises := make([]Promise, 0, len(a.bindings))
	for i := range a.bindings {
		b := &a.bindings[i]
		p := Promise{Binding: b.name, Scope: b.engine.Scope, Topic: b.topic, Plugin: b.plugin.Guarantee}
		p.effect(b, a.cfg.Database, keys)
		p.retention(b, a.cfg.Broker, caps)
		p.order(b, a.cfg.Broker, caps)
		p.keys(b)
		p.Breaks = append(p.Breaks, caps.Caveats...)
		p.Breaks = append(p.Breaks, keys.Caveats...)
		promises = append(promises, p)
	}
	return promises
}

// effect says what holds for the handler's work itself.
func (p *Promise) effect(b *binding, database string, caps keystore.Capabilities) {
	p.Kind = "transactional"
	if b.engine.External != nil {
		p.external(b)
		return
	}
	p.Holds = "the effect happens exactly once"
	p.Because = append(p.Because, fmt.Sprintf("key, rows, result and outgoing messages commit in one %s transaction", database))
	p.Breaks = append(p.Breaks, "what the handler does outside its transaction")
	if !caps.Transactional {
		p.Refused = append(p.Refused, fmt.Sprintf("%s cannot commit keys with the effect; a transactional handler needs that", database))
	}
	if !caps.Durable {
		p.Breaks = append(p.Breaks, fmt.Sprintf("a crash of the machine: %s as configured can lose what it has committed", database))
	}
}

func (p *Promise) external(b *binding) {
	p.Kind = "external"
	p.Because = append(p.Because, "the call runs under a lease with a fencing token and a key for the provider; its rows commit once, with the key")
	switch policy := handlers.UnknownPolicy(b.engine.External.Unknown); policy {
	case handlers.UnknownRetry:
		p.Holds = "the call is repeated until its outcome is known, under one key"
		p.Breaks = append(p.Breaks, "a provider that does not deduplicate by the key"+window(b.engine.External.Window))
	case handlers.UnknownProbe:
		p.Holds = "a call whose outcome is unknown is looked up at the provider before anything is repeated"
		p.Breaks = append(p.Breaks, "a provider that answers the probe before an earlier call has taken effect")
	default:
		p.Holds = "the call happens at most once unless a person decides; one whose outcome is unknown waits in doubt"
	}
}

func window(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(" for at least %s (older calls are parked in doubt)", d)
}

// retention holds the key's life against the broker's longest redelivery. Where nobody chose a retention it is raised; a chosen one that is too short is refused.
func (p *Promise) retention(b *binding, name string, caps broker.Capabilities) {
	longest := caps.LongestRedelivery
	switch {
	case longest == 0:
		p.Breaks = append(p.Breaks, fmt.Sprintf("a copy that %s delivers after %s: %s", name, b.engine.Retention, or(caps.RedeliveryReason, "it sets no bound to redeliveries")))
	case b.engine.Retention >= longest:
	case b.chosen:
		p.Refused = append(p.Refused, fmt.Sprintf("retention %s is shorter than the longest redelivery of %s, %s (%s): set bindings.%s.retention to at least that, or shorten the broker's", b.engine.Retention, name, longest, caps.RedeliveryReason, b.name))
	default:
		b.engine.Retention = longest
	}
	p.Because = append(p.Because, fmt.Sprintf("keys are kept for %s after the effect", b.engine.Retention))
}

// order says what becomes of ordering keys.
func (p *Promise) order(b *binding, name string, caps broker.Capabilities) {
	switch {
	case b.order && caps.Ordering != broker.OrderByKey:
		p.Refused = append(p.Refused, fmt.Sprintf("the binding needs the order of ordering keys over replicas, which %s as configured does not keep", name))
	case b.order:
		p.Because = append(p.Because, "messages of one ordering key are handled in their order, over all replicas")
	default:
		p.Because = append(p.Because, "messages of one ordering key are handled in the order in which one replica receives them")
	}
}

// keys says what the key's source weakens.
func (p *Promise) keys(b *binding) {
	if caveat := envelope.KeySourceCaveat(b.keySpec); caveat != "" {
		p.Breaks = append(p.Breaks, caveat)
	}
	switch b.missing {
	case envelope.MissingPass:
		p.Breaks = append(p.Breaks, "a message without a key runs without deduplication")
		if b.engine.External != nil {
			p.Refused = append(p.Refused, "missing_key: pass cannot be used with an external handler: without a key the provider cannot deduplicate")
		}
	case envelope.MissingDerive:
		p.Breaks = append(p.Breaks, "two messages without a key that are meant to be two, with equal payloads, count as one")
	}
}

func (p Promise) print(w io.Writer) {
	fmt.Fprintf(w, "%s (%s, topic %s): %s\n", p.Binding, p.Kind, p.Topic, p.Holds)
	for _, line := range p.Because {
		fmt.Fprintf(w, "  because  %s\n", line)
	}
	for _, line := range p.Breaks {
		fmt.Fprintf(w, "  unless   %s\n", line)
	}
	for _, line := range p.Refused {
		fmt.Fprintf(w, "  REFUSED  %s\n", line)
	}
	if p.Plugin != "" {
		fmt.Fprintf(w, "  plugin   %s\n", strings.Join(strings.Fields(p.Plugin), " "))
	}
	fmt.Fprintln(w)
}

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
	if err := refusals(a.promises()); err != nil {
		return withCode(ExitRefused, err)
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
