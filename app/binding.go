package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// binding is one handler of the running configuration, with everything that engine, broker and start-up gate must know.
type binding struct {
	name   string
	topic  string // logical
	group  string // names queue, consumer group or durable
	order  bool   // over all replicas
	plugin handlers.Plugin
	engine idempotency.Binding

	keySpec string // as configured, for the guarantees
	missing envelope.MissingKey
	// chosen reports that the retention was configured and is not a default.
	chosen bool
}

// defaultRetention is how long keys are kept when nobody says otherwise.
const defaultRetention = 7 * 24 * time.Hour

// bindOne makes a binding of what the plugin declares and what is configured.
func bindOne(cfg *config.Config, p handlers.Plugin, decl handlers.Binding) (binding, error) {
	set := cfg.Bindings[decl.Name]
	b := binding{name: decl.Name, topic: or(set.Topic, decl.Topic), plugin: p, order: decl.Order, chosen: set.Retention > 0}
	if set.Ordered != nil {
		b.order = *set.Ordered
	}
	scope := or(set.Scope, cfg.Service+"/"+decl.Name)
	b.group = strings.ReplaceAll(scope, "/", ".")
	source, err := envelope.ParseKeySource(set.Key)
	missing, err2 := envelope.ParseMissingKey(set.MissingKey)
	print, err3 := envelope.ParseFingerprint(set.Fingerprint)
	if err := errors.Join(err, err2, err3, envelope.ValidateTopic(b.topic), supported(cfg, set)); err != nil {
		return b, err
	}
	b.keySpec, b.missing = set.Key, missing
	b.engine = idempotency.Binding{
		Scope: scope, Topic: b.topic, Key: source, Missing: missing, Fingerprint: print, MaxPayload: cfg.MaxPayload,
		Retention:   or(set.Retention.Std(), or(p.Retention, defaultRetention)),
		Concurrency: or(set.Concurrency, 8), Timeout: set.Timeout.Std(), Isolation: set.Isolation,
		CrashLimit: cfg.CrashLimit, Hold: set.Hold(), Retry: retry(set.Retry),
	}
	if decl.External != nil {
		policy := or(handlers.UnknownPolicy(set.UnknownOutcome), or(decl.External.Unknown, handlers.UnknownPark))
		b.engine.External = external(*decl.External, policy)
		return b, nil
	}
	if set.UnknownOutcome != "" {
		return b, errors.New("unknown_outcome is for external handlers; this one commits with its key, so its outcome is always known")
	}
	b.engine.Handler = transactional(decl.Handler)
	return b, nil
}

// supported refuses settings that this version does not keep.
func supported(cfg *config.Config, set config.Binding) error {
	if keys := or(set.Keys, cfg.Keys); keys != "database" {
		return fmt.Errorf("keys: %s is not linked into this program; use database", keys)
	}
	if set.OnDuplicate == "resend" {
		return errors.New("on_duplicate: resend is not supported by this version; use skip")
	}
	return nil
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
