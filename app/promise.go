package app

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Promise is what is promised for one binding of the running configuration.
type Promise struct {
	Binding string   `json:"binding"`
	Scope   string   `json:"scope"`
	Topic   string   `json:"topic"`
	Kind    string   `json:"kind"` // transactional, external or transform
	Holds   string   `json:"holds"`
	Because []string `json:"because"`
	// Retention is how long a key is kept: as configured, or raised to the broker's longest redelivery.
	Retention string `json:"retention"`
	// Breaks says what could break the promise, outside Oncemill's reach.
	Breaks []string `json:"breaks"`
	// Refused says why the binding must not start like this; empty where it may.
	Refused []string `json:"refused"`
	// Plugin is the plugin's own text.
	Plugin string `json:"plugin"`

	kept time.Duration // Retention
}

// ground is what promises stand on: the broker and the database as they are configured.
type ground struct {
	broker   string
	database string
	delivery broker.Capabilities
	keys     keystore.Capabilities
	// far are the stores of keys elsewhere, by name.
	far map[string]keystore.Capabilities
}

// promise computes the guarantee of a binding. It needs no connection, only what the capabilities say.
func (g ground) promise(b binding) Promise {
	p := Promise{
		Binding: b.name, Scope: b.engine.Scope, Topic: b.topic, Plugin: strings.Join(strings.Fields(b.plugin.Guarantee), " "),
		Because: []string{}, Breaks: []string{}, Refused: []string{},
	}
	p.effect(b, g)
	p.retention(b, g)
	p.order(b, g)
	p.keys(b)
	p.elsewhere(b, g)
	caveats := slices.Concat(g.delivery.Caveats, g.keys.Caveats)
	if b.inBroker() {
		caveats = slices.Concat(g.delivery.Transactions, g.delivery.Caveats)
	}
	for _, caveat := range caveats {
		p.unless("%s", strings.TrimSuffix(caveat, "."))
	}
	return p
}

func (p *Promise) because(format string, args ...any) {
	p.Because = append(p.Because, fmt.Sprintf(format, args...))
}

func (p *Promise) unless(format string, args ...any) {
	p.Breaks = append(p.Breaks, fmt.Sprintf(format, args...))
}

func (p *Promise) refuse(format string, args ...any) {
	p.Refused = append(p.Refused, fmt.Sprintf(format, args...))
}

// effect says what holds for the handler's work itself.
func (p *Promise) effect(b binding, g ground) {
	if b.inBroker() {
		p.inBroker(b, g)
		return
	}
	if b.engine.External != nil {
		p.Kind = "external"
		p.external(b)
		return
	}
	p.Kind, p.Holds = "transactional", "the effect happens exactly once"
	if b.transform != nil {
		p.Kind = "transform"
	}
	p.because("key, rows, result and outgoing messages commit in one %s transaction", g.database)
	p.unless("what the handler does outside its transaction")
	if !g.keys.Transactional {
		p.refuse("%s cannot commit keys with the effect; a transactional handler needs that: choose another database", g.database)
	}
	if !g.keys.Durable {
		p.unless("a crash of the machine: %s as configured can lose what it has committed", g.database)
	}
}

// inBroker says what holds where the keys are in the broker's own transactions, and who cannot have them there.
func (p *Promise) inBroker(b binding, g ground) {
	setting := fmt.Sprintf("set bindings.%s.keys: %s", b.name, inDatabase)
	switch {
	case b.engine.External != nil:
		p.Kind = "external"
		p.refuse("keys: %s commits keys in a transaction of %s; this handler has an outside effect, which is in no transaction and needs a lease: %s", b.kept, b.kept, setting)
	case b.transform == nil:
		p.Kind = "transactional"
		p.refuse("keys: %s commits keys in a transaction of %s; this handler writes to the database, which is not part of it: %s", b.kept, b.kept, setting)
	default:
		p.Kind = "transform"
	}
	if b.kept != g.broker || g.delivery.Transactions == nil {
		p.refuse("keys: %s needs broker %s: keys, consumed positions and produced messages commit in one transaction of that broker; %s", b.kept, b.kept, setting)
	}
	p.Holds = "each produced message is seen exactly once by consumers that read committed messages only"
	p.because("consumed offsets, produced messages and keys commit in one %s transaction; an owner that lost its partition is fenced", g.broker)
	p.because("messages that wait for a retry and dead letters are kept in %s, written before the transaction commits, removed after it", g.database)
	p.unless("what the handler does besides publishing")
	p.unless("keys that were kept elsewhere before: a change of keys starts with none")
}

func (p *Promise) external(b binding) {
	p.because("the call runs under a lease with a fencing token and a key for the provider; its rows commit once, with the key")
	policy := handlers.UnknownPolicy(b.engine.External.Unknown)
	if b.fence != "" {
		p.because("%s", b.fence)
	}
	if b.fence != "" && policy == handlers.UnknownRetry {
		p.Holds = "the effect happens exactly once"
		if window := b.engine.External.Window; window > 0 {
			p.unless("a message that is taken up again more than %s after its first attempt: it is parked in doubt, not called again", config.Duration(window))
		}
		return
	}
	switch policy {
	case handlers.UnknownRetry:
		p.Holds = "the call is repeated until its outcome is known, under one key"
		p.unless("a provider that does not deduplicate by the key%s", window(b.engine.External.Window))
	case handlers.UnknownProbe:
		p.Holds = "a call whose outcome is unknown is looked up at the provider before anything is repeated"
		p.unless("a provider that answers the probe before an earlier call has taken effect")
	default:
		p.Holds = "the call happens at most once unless a person decides; one whose outcome is unknown waits in doubt"
	}
}

func window(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(" for at least %s (older calls are parked in doubt)", config.Duration(d))
}

// retention holds the key's life against the broker's longest redelivery. Where nobody chose a retention it is raised; a chosen one that is too short is refused.
func (p *Promise) retention(b binding, g ground) {
	if b.inBroker() { // a redelivery needs no key: its offset commits with its outputs
		kept := config.Duration(b.engine.Retention)
		p.kept, p.Retention = kept.Std(), kept.String()
		p.because("keys are kept for %s after the effect, for second sendings of the producer", kept)
		return
	}
	kept, longest := config.Duration(b.engine.Retention), config.Duration(g.delivery.LongestRedelivery)
	switch {
	case longest == 0:
		p.unless("a copy that %s delivers after %s: %s", g.broker, kept, or(g.delivery.RedeliveryReason, "it sets no bound to redeliveries"))
	case kept >= longest:
	case b.chosen:
		p.refuse("retention %s is shorter than the longest redelivery of %s, %s (%s): set bindings.%s.retention to at least that, or shorten the broker's",
			kept, g.broker, longest, g.delivery.RedeliveryReason, b.name)
	default:
		kept = longest
	}
	p.kept, p.Retention = kept.Std(), kept.String()
	p.because("keys are kept for %s after the effect", kept)
}

// order says what becomes of ordering keys.
func (p *Promise) order(b binding, g ground) {
	switch {
	case b.inBroker():
		p.because("messages of one partition are handled in their order")
	case b.order && g.delivery.Ordering != broker.OrderByKey:
		p.refuse("the binding needs the order of ordering keys over replicas, which %s as configured does not keep: use another broker, or set bindings.%s.ordered: false", g.broker, b.name)
	case b.order:
		p.because("messages of one ordering key are handled in their order, over all replicas")
	default:
		p.because("messages of one ordering key are handled in the order in which one replica receives them")
	}
}

// keys says what the key's source weakens.
func (p *Promise) keys(b binding) {
	if caveat := envelope.KeySourceCaveat(b.keySpec); caveat != "" {
		p.unless("%s", caveat)
	}
	switch b.missing {
	case envelope.MissingPass:
		p.unless("a message without a key runs without deduplication")
		if b.engine.External != nil {
			p.refuse("missing_key: pass cannot be used with an external handler: without a key the provider cannot deduplicate; use reject or derive")
		}
	case envelope.MissingDerive:
		p.unless("two messages without a key that are meant to be two, with equal payloads, count as one")
	}
}

// elsewhere says what keys that are kept besides the database save, and what their loss means.
func (p *Promise) elsewhere(b binding, g ground) {
	if !b.apart {
		return
	}
	far := g.far[b.kept]
	if b.engine.External == nil {
		p.because("%s only tells that a key is certainly completed in this epoch of %s, which saves its copy a transaction; losing, flushing or rolling back %s costs speed, never the effect",
			b.kept, g.database, b.kept)
	} else {
		p.because("the lease is in %s, guarded by its token; the rows commit in one transaction of %s that also inserts the key, so whatever %s loses, they commit once", b.kept, g.database, b.kept)
		relies := b.engine.External.Unknown != idempotency.UnknownRetry
		switch {
		case far.Forgets != "" && relies:
			p.refuse("%s, and so a call could be made twice although unknown_outcome is %s: mend that, use keys: database, set unknown_outcome: retry where the provider deduplicates, or accept it by databases.%s.allow_loss",
				far.Forgets, or(b.engine.External.Unknown, idempotency.UnknownPark), b.kept)
		case far.Forgets != "":
			p.unless("%s", far.Forgets)
		}
		for _, caveat := range far.Caveats {
			p.unless("%s", strings.TrimSuffix(caveat, "."))
		}
	}
	p.unless("a copy of the files, or a dump, of %s that is put back onto the same server without \"keys epoch --raise\": copies of what it forgot count as duplicates", g.database)
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
		fmt.Fprintf(w, "  plugin   %s\n", p.Plugin)
	}
	fmt.Fprintln(w)
}
