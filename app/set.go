package app

import (
	"fmt"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/adapters/broker/natsbroker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/adapters/broker/sqsbroker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/counters"
	"github.com/oncemill/oncemill/handlers/email"
	"github.com/oncemill/oncemill/handlers/journal"
	"github.com/oncemill/oncemill/handlers/payments"
)

// Set is what an application is made of: the brokers, databases and plugins that are linked in. It is an explicit
// value, so that a main that names only what it uses links only that.
type Set struct {
	// Service is the application's name: the first part of every scope. The configuration may change it.
	Service string
	Brokers []broker.Factory
	Stores  []store.Factory
	Plugins []handlers.Plugin
}

// Builtin is everything that Oncemill ships.
func Builtin() Set {
	return Set{
		Service: "oncemill",
		Brokers: []broker.Factory{
			natsbroker.EmbeddedFactory(),
			rabbitbroker.Factory(),
			kafkabroker.Factory(),
			natsbroker.Factory(),
			sqlbroker.Factory(),
			sqsbroker.Factory(),
		},
		Stores: []store.Factory{
			sqlitestore.Factory(),
			pgstore.Factory(),
			mysqlstore.Factory(),
		},
		Plugins: []handlers.Plugin{
			payments.Plugin(),
			email.Plugin(),
			counters.Plugin(),
			journal.Plugin(),
		},
	}
}

// validate refuses what could only go wrong later: no name, a name given twice, a plugin that is not complete.
func (s Set) validate() error {
	if s.Service == "" {
		return fmt.Errorf("the application has no name: set Service")
	}
	names := map[string]bool{}
	taken := func(kind, name string) error {
		id := kind + " " + name
		if names[id] {
			return fmt.Errorf("%s %q is registered twice: give one of them another name", kind, name)
		}
		names[id] = true
		return nil
	}
	for _, b := range s.Brokers {
		if err := taken("broker", b.Name); err != nil {
			return err
		}
	}
	for _, st := range s.Stores {
		if err := taken("database", st.Name); err != nil {
			return err
		}
	}
	for _, p := range s.Plugins {
		if err := p.Validate(); err != nil {
			return err
		}
		if err := taken("plugin", p.Name); err != nil {
			return err
		}
	}
	return nil
}

func (s Set) broker(name string) (broker.Factory, error) {
	for _, b := range s.Brokers {
		if b.Name == name {
			return b, nil
		}
	}
	return broker.Factory{}, fmt.Errorf("broker %q is not linked into this program", name)
}

func (s Set) store(name string) (store.Factory, error) {
	for _, st := range s.Stores {
		if st.Name == name {
			return st, nil
		}
	}
	return store.Factory{}, fmt.Errorf("database %q is not linked into this program", name)
}
