package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/pluginbind"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// binding is one handler of the running configuration, with everything that engine, broker and start-up gate must know.
type binding struct {
	name   string
	topic  string // logical
	group  string // names queue, consumer group or durable
	order  bool   // over all replicas
	plugin handlers.Plugin
	engine idempotency.Binding
	// kept says where the keys are: inDatabase, the name of a store of keys, or that of a broker with transactions of its own.
	kept string
	// apart reports that kept is a store of keys, besides the database.
	apart bool
	// fence is why an external call has its effect once however often it is made, where that is so.
	fence string
	// outbox, where set, is where an external handler commits outgoing messages itself.
	outbox outbox.Source
	// transform, where set, turns messages into messages. With the keys in the database engine.Handler runs it.
	transform handlers.Transform

	keySpec string // as configured, for the guarantees
	missing envelope.MissingKey
	// chosen reports that the retention was configured and is not a default.
	chosen bool
}

// inBroker reports that the keys are in the broker's own transactions.
func (b binding) inBroker() bool { return b.kept != "" && b.kept != inDatabase && !b.apart }

// defaultRetention is how long keys are kept when nobody says otherwise.
const defaultRetention = 7 * 24 * time.Hour

// bindOne makes a binding of what the plugin declares and what is configured. It reports all problems at once, each with its line.
func bindOne(linked Set, cfg *config.Config, p handlers.Plugin, decl handlers.Binding) (binding, error) {
	set := cfg.Bindings[decl.Name]
	var errs []error
	refuse := func(name string, err error) {
		if err != nil {
			errs = append(errs, cfg.Problem("bindings."+decl.Name+"."+name, "%s", err))
		}
	}
	b := binding{
		name: decl.Name, topic: or(set.Topic, decl.Topic), plugin: p, order: decl.Order, keySpec: set.Key, chosen: set.Retention > 0,
		kept: or(or(set.Keys, cfg.Keys), inDatabase), transform: decl.Transform,
	}
	b.apart = linked.keepsApart(b.kept)
	if set.Ordered != nil {
		b.order = *set.Ordered
	}
	scope := or(set.Scope, cfg.Service+"/"+decl.Name)
	b.group = strings.ReplaceAll(scope, "/", ".")
	b.engine = idempotency.Binding{
		Scope: scope, Topic: b.topic, MaxPayload: cfg.MaxPayload,
		Retention:   or(set.Retention.Std(), or(p.Retention, defaultRetention)),
		Concurrency: or(set.Concurrency, 8), Timeout: set.Timeout.Std(), Isolation: set.Isolation,
		CrashLimit: cfg.CrashLimit, Hold: set.Hold(), Retry: retry(set.Retry),
		Resend: set.OnDuplicate == "resend",
	}
	var err error
	b.engine.Key, err = envelope.ParseKeySource(set.Key)
	refuse("key", err)
	b.missing, err = envelope.ParseMissingKey(set.MissingKey)
	refuse("missing_key", err)
	b.engine.Missing = b.missing
	b.engine.Fingerprint, err = envelope.ParseFingerprint(set.Fingerprint)
	refuse("fingerprint", err)
	refuse("topic", envelope.ValidateTopic(b.topic))
	b.unsupported(set, refuse)
	if decl.External != nil {
		policy := or(handlers.UnknownPolicy(set.UnknownOutcome), or(decl.External.Unknown, handlers.UnknownPark))
		if policy == handlers.UnknownProbe && decl.External.Probe == nil {
			refuse("unknown_outcome", errors.New("this handler cannot probe; use park or retry"))
		}
		b.fence, b.outbox = decl.External.Fence, decl.External.Outbox
		if b.engine.Resend && b.outbox != nil {
			refuse("on_duplicate", errors.New("resend needs the messages in the database; this handler commits them together with its effect: use skip"))
		}
		b.engine.External = pluginbind.External(*decl.External, policy)
	} else {
		if set.UnknownOutcome != "" {
			refuse("unknown_outcome", errors.New("is for external handlers; this one commits with its key, so its outcome is always known"))
		}
		b.engine.Handler = pluginbind.Transactional(decl)
	}
	return b, errors.Join(errs...)
}

// unsupported refuses settings that this program would not keep.
func (b binding) unsupported(set config.Binding, refuse func(name string, err error)) {
	if b.inBroker() {
		if set.Hold() {
			refuse("order", errors.New("hold needs the keys in the database: use continue, or keys: database"))
		}
		if set.Isolation != "" {
			refuse("isolation", errors.New("is that of a database transaction, which this binding has none of"))
		}
	}
	if b.engine.Resend && b.kept != inDatabase {
		refuse("on_duplicate", errors.New("resend needs the keys in the database, which keep the messages: use skip, or keys: database"))
	}
	if !set.Config.IsEmpty() {
		refuse("config", fmt.Errorf("the plugin %s has no settings for one binding; use plugins.%s.config", b.plugin.Name, b.plugin.Name))
	}
}

func retry(set config.Retry) idempotency.Retry {
	r := idempotency.Retry{Attempts: set.Attempts, First: set.First.Std(), Max: set.Max.Std()}
	if set.InProcess != nil {
		r.InProcess = set.InProcess.Std()
		if r.InProcess == 0 {
			r.InProcess = -1
		}
	}
	return r
}

// or returns v unless it is the zero value.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (b binding) subscription() broker.Subscription {
	return broker.Subscription{Topic: b.topic, Group: b.group, InFlight: b.inFlight(), Ordered: b.order}
}

// inFlight keeps the engine's slots busy: a few times as many messages are delivered as run at once.
func (b binding) inFlight() int { return max(4*b.engine.Concurrency, 64) }

// tableName makes of a plugin's name what may stand in a table's name.
func tableName(plugin string) string { return strings.ReplaceAll(plugin, "-", "_") }
