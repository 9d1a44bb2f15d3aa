// Package app composes an Oncemill application: it reads the configuration, opens database and broker, binds
// plugins to topics, checks that every promise can hold, and runs. It is the only package that knows everybody.
//
// The way of a message through the running application:
//
//	broker -> subscriber -> lane ticket -> router -> tracing -> engine [claim -> handler -> commit] -> ack
//	outbox -> relay -> publisher -> broker
//	parking -> feeder -> engine, the same way
package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/middleware"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

// App is one application. New does no I/O, Open connects, Run consumes until its context ends, Close releases everything.
type App struct {
	set      Set
	cfg      *config.Config
	log      *slog.Logger
	bindings []binding
	apart    []placed // outboxes of handlers, besides the database's
	only     []string // names of the bindings that this process runs; none: all
	owner    string   // names this process to database and broker
	gate     idempotency.Gate
	metrics  *metrics
	tracing  *middleware.Tracing
	flush    func(context.Context) error // of the tracing exporter
	probes   probes

	store  store.Store
	far    map[string]store.Keys // by name: where keys are kept besides the database
	broker broker.Broker
	feeder *parking.Feeder
	state  state
}

// New checks set and configuration and opens the plugins. Everything that is wrong is reported at once.
func New(set Set, cfg *config.Config, log *slog.Logger) (*App, error) {
	if err := set.validate(); err != nil {
		return nil, err
	}
	bindings, apart, err := bind(set, cfg)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	a := &App{
		set: set, cfg: cfg, log: log, bindings: bindings, apart: apart,
		owner:   fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8]),
		metrics: newMetrics(), far: map[string]store.Keys{},
	}
	provider, flush, err := newTracerProvider(cfg)
	if err != nil {
		return nil, err
	}
	a.flush, a.tracing = flush, middleware.NewTracing(provider, cfg.Broker)
	return a, nil
}

// Open connects to the database and to the broker. Close is needed also after an error.
func (a *App) Open(ctx context.Context) error {
	if err := errors.Join(a.checkStore(), a.checkKeys(), a.checkBroker()); err != nil {
		return err
	}
	if err := a.openStore(ctx); err != nil {
		return err
	}
	if err := a.openKeys(ctx); err != nil {
		return err
	}
	return a.openBroker(ctx)
}

// checkStore validates the section of the database, without a connection.
func (a *App) checkStore() error {
	factory, err := a.set.store(a.cfg.Database)
	if err != nil {
		return withCode(ExitUsage, err)
	}
	return a.inSection("databases."+a.cfg.Database, factory.Check(a.cfg.Databases[a.cfg.Database].Decode))
}

// checkBroker validates the section of the broker, without a connection.
func (a *App) checkBroker() error {
	factory, err := a.set.broker(a.cfg.Broker)
	if err != nil {
		return withCode(ExitUsage, err)
	}
	return a.inSection("brokers."+a.cfg.Broker, factory.Check(a.cfg.Brokers[a.cfg.Broker].Decode))
}

// inSection says of an error where the section stands, unless it says better itself.
func (a *App) inSection(path string, err error) error {
	return withCode(ExitUsage, inSection(a.cfg, path, err))
}

func (a *App) openStore(ctx context.Context) error {
	if err := a.checkStore(); err != nil {
		return err
	}
	factory, err := a.set.store(a.cfg.Database)
	if err != nil {
		return err
	}
	if err := a.makeDataDir(); err != nil {
		return err
	}
	opened, err := factory.Open(ctx, a.cfg.Databases[a.cfg.Database].Decode, store.Options{
		Logger: a.log, DataDir: a.cfg.DataDir, ClientName: a.owner, Connections: a.connections(), Dial: a.probes.toDatabase,
	})
	if err != nil {
		return fmt.Errorf("open database %s: %w", a.cfg.Database, err)
	}
	a.store = opened
	return nil
}

// connections is how many the application can use at once: each running handler one, its lease's renewal or count
// one after the other, relay, feeder and maintenance a few.
func (a *App) connections() int {
	n := 8
	for _, b := range a.bindings {
		n += b.engine.Concurrency
		if b.engine.External != nil {
			n += 2
		}
	}
	return n
}

func (a *App) makeDataDir() error {
	if err := os.MkdirAll(a.cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	return nil
}

func (a *App) openBroker(ctx context.Context) error {
	if err := errors.Join(a.checkBroker(), a.makeDataDir()); err != nil {
		return err
	}
	factory, err := a.set.broker(a.cfg.Broker)
	if err != nil {
		return err
	}
	opened, err := factory.Open(ctx, a.cfg.Brokers[a.cfg.Broker].Decode, broker.Options{
		Logger: a.log, DataDir: a.cfg.DataDir, ClientName: a.owner, MaxPayload: a.cfg.MaxPayload, Dial: a.probes.toBroker,
	})
	if err != nil {
		return fmt.Errorf("open broker %s: %w", a.cfg.Broker, err)
	}
	a.broker = opened
	return nil
}

// flushTimeout bounds how long Close waits for the collector of traces.
const flushTimeout = 3 * time.Second

// Close closes broker and database and sends the last traces. Safe to call twice, after a failed Open and before Open, but
// not while Run runs.
func (a *App) Close() error {
	var errs []error
	if a.broker != nil {
		errs = append(errs, a.broker.Close())
	}
	errs = append(errs, a.closeKeys())
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := a.flush(ctx); err != nil {
		a.log.Warn("the last traces could not be sent", "err", config.RedactText(err.Error()))
	}
	return errors.Join(errs...)
}

// tables lists the migrations of the enabled plugins.
func (a *App) tables() []store.MigrationSet {
	var sets []store.MigrationSet
	seen := map[string]bool{}
	for _, b := range a.bindings {
		if b.plugin.Migrations != nil && !seen[b.plugin.Name] {
			seen[b.plugin.Name] = true
			sets = append(sets, store.MigrationSet{Name: tableName(b.plugin.Name), Files: b.plugin.Migrations})
		}
	}
	return sets
}

// migrations is tables for the open database. A plugin that has none for it is an error.
func (a *App) migrations() ([]store.MigrationSet, error) {
	var errs []error
	said := map[string]bool{}
	dialect := a.store.Dialect()
	for _, b := range a.bindings {
		name := b.plugin.Name
		if b.plugin.Migrations == nil || said[name] {
			continue
		}
		if _, err := fs.Stat(b.plugin.Migrations, dialect); errors.Is(err, fs.ErrNotExist) {
			said[name] = true
			errs = append(errs, withCode(ExitUsage, fmt.Errorf("plugin %s has no tables for database %s: add the folder %q to its migrations, choose another database, or set plugins.%s.enabled to false",
				name, a.cfg.Database, dialect, name)))
		}
	}
	return a.tables(), errors.Join(errs...)
}

// migrateUp applies the migrations that are missing.
func (a *App) migrateUp(ctx context.Context) error {
	sets, err := a.migrations()
	if err != nil {
		return err
	}
	if err := a.store.Migrate(ctx, sets); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// pending lists the migrations that are missing.
func (a *App) pending(ctx context.Context) ([]string, error) {
	sets, err := a.migrations()
	if err != nil {
		return nil, err
	}
	return a.store.Pending(ctx, sets)
}

// wholeScript is the SQL that an empty database needs.
func (a *App) wholeScript() (string, error) {
	if err := a.checkStore(); err != nil {
		return "", err
	}
	factory, err := a.set.store(a.cfg.Database)
	if err != nil {
		return "", err
	}
	if factory.Script == nil {
		return "", fmt.Errorf("database %s cannot print its tables without a connection: leave --all out", a.cfg.Database)
	}
	return factory.Script(a.cfg.Databases[a.cfg.Database].Decode, a.tables())
}

// migrate brings the tables up to date, or with "verify" only checks that they are.
func (a *App) migrate(ctx context.Context) error {
	if a.cfg.Migrate == "auto" {
		return a.migrateUp(ctx)
	}
	pending, err := a.pending(ctx)
	if err != nil {
		return fmt.Errorf("read the state of the database's tables: %w", err)
	}
	if len(pending) > 0 {
		return fmt.Errorf("the database lacks %d migrations (%s): run \"oncemill migrate up\" with a role that may change tables, or set migrate: auto", len(pending), pending[0])
	}
	return nil
}
