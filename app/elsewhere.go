package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// inDatabase is the name of the place for keys that is no store of its own.
const inDatabase = "database"

// elsewhereNames are the stores of keys that bindings name, each once.
func (a *App) elsewhereNames() []string {
	var names []string
	for _, b := range a.bindings {
		if b.apart && !slices.Contains(names, b.kept) {
			names = append(names, b.kept)
		}
	}
	return names
}

// checkKeys validates the sections of the stores of keys, without a connection.
func (a *App) checkKeys() error {
	var errs []error
	for _, name := range a.elsewhereNames() {
		factory, err := a.set.keyStore(name)
		if err != nil {
			errs = append(errs, withCode(ExitUsage, err))
			continue
		}
		errs = append(errs, a.inSection("databases."+name, factory.Check(a.cfg.Databases[name].Decode)))
	}
	return errors.Join(errs...)
}

// openKeys opens the stores of keys. One that does not answer stops the start only where an external handler has its leases there: without hints
// everything runs, slower.
func (a *App) openKeys(ctx context.Context) error {
	for _, name := range a.elsewhereNames() {
		factory, err := a.set.keyStore(name)
		if err != nil {
			return withCode(ExitUsage, err)
		}
		opened, err := factory.Open(ctx, a.cfg.Databases[name].Decode, store.Options{
			Logger: a.log, DataDir: a.cfg.DataDir, ClientName: a.owner, Connections: a.connections(), Dial: a.probes.toKeys,
		})
		if err != nil {
			return fmt.Errorf("open the store of keys %s: %w", name, err)
		}
		a.far[name] = opened
		err = opened.Ping(ctx)
		switch {
		case err == nil:
		case a.leases(name):
			return fmt.Errorf("open the store of keys %s, where external handlers have their leases: %w", name, err)
		default:
			a.log.Warn("the store of keys does not answer: duplicates cost a transaction until it does", "keys", name, "err", err)
		}
	}
	return nil
}

// leases reports whether external handlers have their leases in a store of keys.
func (a *App) leases(name string) bool {
	for _, b := range a.bindings {
		if b.kept == name && b.engine.External != nil {
			return true
		}
	}
	return false
}

// elsewhere is where a binding keeps its keys besides the database; nil where nowhere.
func (a *App) elsewhere(b binding) keystore.Elsewhere {
	if far, ok := a.far[b.kept]; ok {
		return far
	}
	return nil
}

// pingKeys asks the stores without which messages would not be handled now.
func (a *App) pingKeys(ctx context.Context) error {
	for name, far := range a.far {
		if a.leases(name) {
			if err := far.Ping(ctx); err != nil {
				return fmt.Errorf("the store of keys %s does not answer", name)
			}
		}
	}
	return nil
}

func (a *App) closeKeys() error {
	var errs []error
	for _, far := range a.far {
		errs = append(errs, far.Close())
	}
	return errors.Join(errs...)
}
