// Package handlertest tests a plugin's handlers from an ordinary go test, with nothing installed: through the real engine, on a
// SQLite file of the test's own (or on a server, see OnPostgres and OnMySQL). A message is delivered once, twice, to two replicas at the same moment, or again
// and again with each step of its way broken in each way, and the test says which rows, messages and dead letters it wants to see.
//
//	func TestRisk(t *testing.T) {
//		k := handlertest.New(t, risk.Plugin(), nil)
//		k.Prove(func(k *handlertest.Kit) {
//			k.WantRow(`SELECT count(*) FROM risk_seen`, 1)
//			k.WantPublished("risk.flagged", 1)
//		}, handlertest.Message{To: "payments.completed", Key: "pay-1", Payload: risk.Payment{ID: "p1", Amount: "5.00"}})
//	}
//
// No broker takes part: what a handler publishes stays in the outbox, or goes to a file when a proof lets the relay run; Published reads both. A failure that would be tried
// again is parked at once (an external handler's after half a second); Advance moves the clock, and runs what is due by then.
package handlertest

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Service is the first part of the bindings' scopes: a binding's is Service/name.
const Service = "test"

// Kit is a plugin with a database of its own. Its methods fail the test, so they are called from the test's goroutine.
type Kit struct {
	t        testing.TB
	plugin   handlers.Plugin
	bindings []handlers.Binding
	unknown  handlers.UnknownPolicy
	place    database
	dir      string        // for files
	timeout  time.Duration // of the handlers
	db       store.Store
	one, two *replica

	test, line string // what a process of a proof's runs again

	engine func(parts) engine              // nil is the real one
	outbox func(store.Store) outbox.Source // nil is the store's own
}

// Option changes a kit.
type Option func(*Kit)

// WithUnknownOutcome sets the policy of the external handlers, in place of the plugin's own.
func WithUnknownOutcome(policy handlers.UnknownPolicy) Option {
	return func(k *Kit) { k.unknown = policy }
}

// New opens the plugin on a fresh database with its tables. config is the plugin's configuration as YAML (a string), a
// value of its type, which stands for the whole section, or nil for the defaults.
func New(t *testing.T, plugin handlers.Plugin, config any, options ...Option) *Kit {
	t.Helper()
	if err := plugin.Validate(); err != nil {
		t.Fatalf("handlertest: %v", err)
	}
	bindings := handlers.NewBindings(plugin.Name)
	if err := plugin.Open(decoder(config), bindings); err != nil {
		t.Fatalf("handlertest: opening plugin %s: %v", plugin.Name, err)
	}
	k := &Kit{
		t: t, plugin: plugin, bindings: bindings.List(),
		dir: t.TempDir(), timeout: patience / 2,
	}
	for _, option := range options {
		option(k)
	}
	if k.place == nil {
		k.place = newFile(t)
	}
	k.open()
	return k
}

// decoder fills a plugin's configuration from a test's value.
func decoder(config any) func(any) error {
	return func(target any) error {
		if text, ok := config.(string); ok {
			return yaml.UnmarshalWithOptions([]byte(text), target, yaml.Strict())
		}
		given, into := reflect.ValueOf(config), reflect.ValueOf(target).Elem()
		if !given.IsValid() || given.IsZero() {
			return nil
		}
		if !given.Type().AssignableTo(into.Type()) {
			return fmt.Errorf("the plugin's configuration is a %s, not a %s", into.Type(), given.Type())
		}
		into.Set(given)
		return nil
	}
}

// open opens the database twice, as two replicas would, and brings its tables up to date.
func (k *Kit) open() {
	k.t.Helper()
	k.one, k.two = k.newReplica("one"), k.newReplica("two")
	k.db = k.one.store
	var sets []store.MigrationSet
	if k.plugin.Migrations != nil {
		sets = []store.MigrationSet{{Name: tableName(k.plugin.Name), Files: k.plugin.Migrations}}
	}
	if err := k.db.Migrate(k.t.Context(), sets); err != nil {
		k.t.Fatalf("handlertest: tables of plugin %s: %v", k.plugin.Name, err)
	}
}

// copy is a kit for t on a copy of the database, which is not open yet.
func (k *Kit) copy(t testing.TB) *Kit {
	t.Helper()
	c := *k
	c.t, c.dir, c.place = t, t.TempDir(), k.place.copy(t, k.DB())
	return &c
}

func (k *Kit) replicas() [2]*replica { return [2]*replica{k.one, k.two} }

func (k *Kit) openStore(replica string) store.Store {
	k.t.Helper()
	s, err := k.place.open(k.t.Context(), replica, k.logger())
	if err != nil {
		k.t.Fatalf("handlertest: %v", err)
	}
	k.t.Cleanup(func() { _ = s.Close() })
	return s
}

// logger writes the engine's warnings into the test's log.
func (k *Kit) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(k.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// DB is the database, for what the other methods do not offer.
func (k *Kit) DB() *sqlx.DB { return k.db.DB() }

// T is the test that the kit reports to: within Prove's invariant, one that belongs to the schedule.
func (k *Kit) T() testing.TB { return k.t }

// Exec runs a statement outside any handler, such as one that opens an account.
func (k *Kit) Exec(query string, args ...any) {
	k.t.Helper()
	if _, err := k.DB().ExecContext(k.t.Context(), query, args...); err != nil {
		k.t.Fatalf("handlertest: %s: %v", query, err)
	}
}

// patience bounds what a delivery may take beyond its handler's timeout.
const patience = time.Minute

func (k *Kit) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.t.Context(), patience)
}
