package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// Combination is one choice of --broker, --database and --keys, and what it means for one kind of handler.
type Combination struct {
	Broker   string `json:"broker"`
	Database string `json:"database"`
	Keys     string `json:"keys"`
	// Handler is the kind of handler: transactional, ordered (a transactional one that needs the order of ordering keys), external or transform.
	Handler string `json:"handler"`
	// Holds is the promise; empty where the combination is refused.
	Holds string `json:"holds"`
	// Refused says why such a binding must not start; empty where it may.
	Refused []string `json:"refused"`
}

// Offered reports whether a binding of that kind may start.
func (c Combination) Offered() bool { return len(c.Refused) == 0 }

// Matrix lists every combination that the configuration has names for or set has linked in, judged as the start of a binding is. It connects to
// nothing: it goes by what adapters promise when they are well configured, so a start may still be refused for a setting.
func Matrix(set Set) []Combination {
	var all []Combination
	for _, brokerName := range named("broker", set.Brokers, func(f broker.Factory) string { return f.Name }) {
		for _, database := range named("database", set.Stores, func(f store.Factory) string { return f.Name }) {
			for _, keys := range named("keys", set.keyPlaces(), func(name string) string { return name }) {
				all = append(all, set.combinations(brokerName, database, keys)...)
			}
		}
	}
	return all
}

// named are the names of what is linked in, and then those that only the configuration knows.
func named[T any](setting string, linked []T, name func(T) string) []string {
	var all []string
	for _, one := range linked {
		all = append(all, name(one))
	}
	for _, known := range config.Choices(setting) {
		if !slices.Contains(all, known) {
			all = append(all, known)
		}
	}
	return all
}

// keyPlaces are the places for keys that are linked in: the database, stores of keys, and brokers with transactions of their own.
func (s Set) keyPlaces() []string {
	places := []string{inDatabase}
	for _, k := range s.Keys {
		places = append(places, k.Name)
	}
	for _, b := range s.Brokers {
		if b.Keys != "" {
			places = append(places, b.Keys)
		}
	}
	return places
}

// kinds are handlers with everything at its default.
func kinds() []binding {
	plain := func(name string) binding {
		return binding{name: name, missing: envelope.MissingReject, engine: idempotency.Binding{Retention: defaultRetention}}
	}
	ordered, external := plain("ordered"), plain("external")
	ordered.order = true
	external.engine.External = &idempotency.External{}
	transform := plain("transform")
	transform.transform = func(context.Context, handlers.Emitter, *message.Message) error { return nil }
	return []binding{plain("transactional"), ordered, external, transform}
}

func (s Set) combinations(brokerName, database, keys string) []Combination {
	g, missing := s.ground(brokerName, database, keys)
	all := make([]Combination, 0, len(kinds()))
	for _, kind := range kinds() {
		c := Combination{Broker: brokerName, Database: database, Keys: keys, Handler: kind.name, Refused: missing}
		if len(missing) == 0 {
			kind.kept, kind.apart = keys, s.keepsApart(keys)
			p := g.promise(kind)
			c.Refused = p.Refused
			if c.Offered() {
				c.Holds = p.Holds
			}
		}
		all = append(all, c)
	}
	return all
}

// ground is what promises stand on before anything is opened, or what is missing of it.
func (s Set) ground(brokerName, database, keys string) (g ground, missing []string) {
	absent := func(what, name string) {
		missing = append(missing, fmt.Sprintf("%s %s is not linked into this program", what, name))
	}
	g = ground{broker: brokerName, database: database}
	if f, err := s.broker(brokerName); err == nil {
		g.delivery = f.Capabilities
	} else {
		absent("broker", brokerName)
	}
	if f, err := s.store(database); err == nil {
		g.keys = f.Capabilities
	} else {
		absent("database", database)
	}
	if !slices.Contains(s.keyPlaces(), keys) {
		absent("keys", keys)
	}
	if missing == nil {
		missing = []string{}
	}
	return g, missing
}

// printMatrix prints one line for each choice, and the reasons of refusals below.
func printMatrix(w io.Writer, all []Combination) error {
	t := table{header: []string{"BROKER", "DATABASE", "KEYS", "TRANSACTIONAL", "ORDERED", "EXTERNAL", "TRANSFORM"}}
	var reasons []string
	for choice := range slices.Chunk(all, len(kinds())) {
		cells := []string{choice[0].Broker, choice[0].Database, choice[0].Keys}
		for _, c := range choice {
			cell := "offered"
			for _, why := range c.Refused {
				at := slices.Index(reasons, why)
				if at < 0 {
					at = len(reasons)
					reasons = append(reasons, why)
				}
				cell = strings.TrimPrefix(cmp.Or(strings.TrimPrefix(cell, "offered"), "refused")+fmt.Sprintf(" (%d)", at+1), " ")
			}
			cells = append(cells, cell)
		}
		t.add(cells...)
	}
	if err := t.print(w); err != nil {
		return err
	}
	for i, why := range reasons {
		fmt.Fprintf(w, "\n(%d) %s", i+1, why)
	}
	if len(reasons) > 0 {
		fmt.Fprintln(w)
	}
	return nil
}
