package proof

import (
	"context"
	"slices"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/handlers"
)

// Role is a binding of a plugin that brings a trial of its own.
type Role struct {
	Plugin  handlers.Plugin
	Binding history.Binding
}

// Own is the cast of plugins that bring a trial of their own.
func Own(roles []Role) Cast { return own{roles} }

type own struct{ roles []Role }

// Bindings implements Cast.
func (o own) Bindings() (bindings []history.Binding) {
	for _, r := range o.roles {
		bindings = append(bindings, r.Binding)
	}
	return bindings
}

// Topics implements Cast.
func (o own) Topics() []string {
	var published []string
	for _, r := range o.roles {
		published = append(published, r.Plugin.Publishes...)
	}
	return topicsOf(o.Bindings(), published...)
}

// Plugins implements Cast.
func (o own) Plugins() (names []string) {
	for _, p := range o.plugins() {
		names = append(names, p.Name)
	}
	return names
}

func (o own) plugins() (plugins []handlers.Plugin) {
	for _, r := range o.roles {
		if !slices.ContainsFunc(plugins, func(p handlers.Plugin) bool { return p.Name == r.Plugin.Name }) {
			plugins = append(plugins, r.Plugin)
		}
	}
	return plugins
}

func (o own) cues() (names []string) {
	for _, r := range o.roles {
		if r.Plugin.Trial.Payload(r.Binding.Name, 0) != nil {
			names = append(names, r.Binding.Name)
		}
	}
	return names
}

func (o own) cue(binding string, n int, _ func(string) string) cue {
	c := cue{key: keyOf(binding, n)}
	c.target = c.key
	for _, r := range o.roles {
		if r.Binding.Name == binding {
			c.topic, c.body = r.Binding.Topic, r.Plugin.Trial.Payload(binding, n)
		}
	}
	return c
}

func (own) opening() []cue { return nil }

func (own) readings() []reading { return nil }

// check asks each plugin whether the database is as if each of its messages that are done had taken effect once.
func (o own) check(ctx context.Context, db *sqlx.DB, sent []cue, completed func(binding, key string) bool) (events []history.Event) {
	for _, p := range o.plugins() {
		var handled []handlers.Handled
		for _, c := range sent {
			if o.plays(p.Name, c.binding) && completed(c.binding, c.key) {
				handled = append(handled, handlers.Handled{Binding: c.binding, N: c.n, Key: c.key})
			}
		}
		e := history.Event{Kind: history.Checked, What: p.Name, Count: int64(len(handled))}
		if err := p.Trial.Check(ctx, db, handled); err != nil {
			e.Reason = err.Error()
		}
		events = append(events, e)
	}
	return events
}

func (o own) plays(plugin, binding string) bool {
	return slices.ContainsFunc(o.roles, func(r Role) bool { return r.Plugin.Name == plugin && r.Binding.Name == binding })
}
