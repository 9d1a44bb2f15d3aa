package handlertest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/pluginbind"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

// replica is one process's part: connections and engines of its own.
type replica struct {
	name    string
	store   store.Store
	engines map[string]engine // by scope

	mu      sync.Mutex
	fault   stepHook
	outcome map[string]Outcome // the latest, by scope
}

// engine handles the messages of one binding. Other ones than idempotency.Engine are wrong on purpose, and test the kit.
type engine interface {
	Process(msg *message.Message) error
	RunParked(ctx context.Context, row parking.Leased) error
	Stop()
	Wait(ctx context.Context) error
}

// parts are what an engine is made of.
type parts struct {
	Binding handlers.Binding
	Scope   string
	Replica string
	Store   store.Store
	At      faultpoint.Hook
	Now     func() time.Time // the database's clock
}

func (k *Kit) newEngine(p parts, observe func(idempotency.Event)) (engine, error) {
	if k.engine != nil {
		return k.engine(p), nil
	}
	return idempotency.New(idempotency.Config{
		Binding: k.binding(p.Binding), Keys: p.Store.Keys(), Parking: p.Store.Parking(), Owner: p.Replica,
		Logger: k.logger(), Observe: observe, Fault: p.At,
	})
}

func (k *Kit) newReplica(name string) *replica {
	k.t.Helper()
	r := &replica{name: name, store: k.openStore(name), engines: map[string]engine{}, outcome: map[string]Outcome{}}
	for _, b := range k.bindings {
		at := stepHook(r.at).of(step{external: b.External != nil})
		engine, err := k.newEngine(parts{b, scope(b), name, r.store, at, k.place.now}, r.observe)
		if err != nil {
			k.t.Fatalf("handlertest: binding %s: %v", b.Name, err)
		}
		k.t.Cleanup(func() {
			engine.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := engine.Wait(ctx); err != nil {
				k.t.Errorf("handlertest: binding %s does not stop: %v", b.Name, err)
			}
		})
		r.engines[scope(b)] = engine
	}
	return r
}

// binding is what the application makes of a declaration, except that a retry is parked at once: a test does not wait.
func (k *Kit) binding(b handlers.Binding) idempotency.Binding {
	made := idempotency.Binding{
		Scope: scope(b), Topic: b.Topic, Retention: k.plugin.Retention,
		Retry: idempotency.Retry{InProcess: -1}, Timeout: k.timeout,
	}
	if b.External == nil {
		made.Handler = pluginbind.Transactional(b)
		return made
	}
	made.External = pluginbind.External(*b.External, k.policy(b))
	// A Record that fails is tried again with its Call's result, which no parked copy would have.
	made.Retry.InProcess = time.Second / 2
	return made
}

// policy decides about outside calls of a binding whose outcome is not known.
func (k *Kit) policy(b handlers.Binding) handlers.UnknownPolicy {
	return cmp.Or(k.unknown, b.External.Unknown)
}

// mayDoubt reports that a handler leaves messages of unknown outcome to a person.
func (k *Kit) mayDoubt() bool {
	return slices.ContainsFunc(k.bindings, func(b handlers.Binding) bool {
		return b.External != nil && cmp.Or(k.policy(b), handlers.UnknownPark) == handlers.UnknownPark
	})
}

func scope(b handlers.Binding) string { return Service + "/" + b.Name }

// tableName makes of a plugin's name what may stand in a table's name.
func tableName(plugin string) string { return strings.ReplaceAll(plugin, "-", "_") }

// Outcome is what became of a delivered message.
type Outcome string

// Outcomes of a delivery.
const (
	Completed Outcome = "completed"   // its effect is committed
	Duplicate Outcome = "duplicate"   // it was completed before; nothing ran
	Parked    Outcome = "parked"      // it failed and waits for its next attempt, which Advance runs
	Waiting   Outcome = "waiting"     // a parked copy of it exists; this one was not needed
	Dead      Outcome = "dead_letter" // it is a dead letter
	Rejected  Outcome = "rejected"    // it became a dead letter before; nothing ran
	InDoubt   Outcome = "in_doubt"    // whether its outside effect happened is not known
	// HandedBack is a delivery that went back to the broker, which would deliver it again.
	HandedBack Outcome = "handed_back"
)

func (r *replica) observe(e idempotency.Event) {
	switch outcome := Outcome(e.Kind); outcome {
	case Completed, Duplicate, Parked, Waiting, Dead, Rejected, InDoubt:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outcome[e.Scope] = outcome
	}
}

func (r *replica) latest(scope string) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome[scope]
}

// stepHook is called at each step that a replica passes.
type stepHook func(ctx context.Context, at step) error

// of makes a hook of the engine's or the relay's, whose steps are as in kind.
func (h stepHook) of(kind step) faultpoint.Hook {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, at faultpoint.Point) error {
		s := kind
		s.point = at
		switch at {
		case faultpoint.LeaseAcquired, faultpoint.Answering, faultpoint.Called:
			s.leased = true // and no transaction is open, which would hold up whoever takes over
		}
		return h(ctx, s)
	}
}

// at is called at each step; breakAt decides what it does.
func (r *replica) at(ctx context.Context, at step) error {
	r.mu.Lock()
	fault := r.fault
	r.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx, at)
}

func (r *replica) breakAt(fault stepHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

// runDue runs what is parked and due, until nothing is.
func (r *replica) runDue(ctx context.Context) error {
	scopes := make([]string, 0, len(r.engines))
	for scope := range r.engines {
		scopes = append(scopes, scope)
	}
	for {
		rows, err := r.store.Parking().LeaseDue(ctx, scopes, 16, time.Minute)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows {
			if err := r.engines[row.Scope].RunParked(ctx, row); err != nil {
				return err
			}
		}
	}
}
