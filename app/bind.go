package app

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
)

// routed is what Watermill's router calls behind the engine's middleware; the engine answers for every message itself.
func routed(*message.Message) error {
	return errors.New("the router called a handler past the engine")
}

// bind opens the plugins and makes the bindings that the configuration enables, and the outboxes that their plugins have besides the database's. All
// problems are reported at once.
func bind(set Set, cfg *config.Config) ([]binding, []placed, error) {
	known, err := declare(set, cfg)
	if err != nil {
		return nil, nil, err
	}
	on := slices.DeleteFunc(known, func(d declared) bool { return !enabled(cfg, d.plugin) })
	var all []binding
	var errs []error
	groups := map[string]string{}
	for _, d := range on {
		if !cfg.Bindings[d.Name].On() {
			continue
		}
		b, err := bindOne(set, cfg, d.plugin, d.Binding)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// Scopes that differ in '/' and '.' alone have one group, and so one queue.
		if other, taken := groups[b.group]; taken {
			errs = append(errs, cfg.Problem("bindings."+b.name+".scope", "bindings %s and %s would share keys and queue %q: a message would count for one of them only; give one another scope", other, b.name, b.group))
		}
		groups[b.group] = b.name
		all = append(all, b)
	}
	if len(errs) == 0 && len(all) == 0 {
		errs = append(errs, errors.New("no binding is enabled: nothing would be consumed"))
	}
	return all, outboxesOf(on), errors.Join(errs...)
}

// enabled is the configuration's word on a plugin, else the plugin's own.
func enabled(cfg *config.Config, p handlers.Plugin) bool { return cfg.Plugins[p.Name].On(!p.OptIn) }

type declared struct {
	plugin handlers.Plugin
	handlers.Binding
}

// declare opens every plugin. Those that are switched off are opened too, so that the names of their bindings are known, but
// what is wrong with their configuration does not matter.
func declare(set Set, cfg *config.Config) ([]declared, error) {
	var all []declared
	var names []string
	of := map[string]string{} // plugins by their bindings' names
	var errs []error
	for _, p := range set.Plugins {
		bindings := handlers.NewBindings(p.Name)
		bindings.MaxPayload = cfg.MaxPayload
		if err := p.Open(cfg.Plugins[p.Name].Decode, bindings); err != nil && enabled(cfg, p) {
			errs = append(errs, inSection(cfg, "plugins."+p.Name+".config", err))
		}
		if p.Replaces != "" && enabled(cfg, p) && slices.ContainsFunc(set.Plugins, func(other handlers.Plugin) bool { return other.Name == p.Replaces && enabled(cfg, other) }) {
			errs = append(errs, cfg.Problem("plugins."+p.Name+".enabled", "plugins %s and %s do the same work in two places, so each message would have its effect in both; set plugins.%s.enabled to false", p.Name, p.Replaces, p.Replaces))
		}
		for _, b := range bindings.List() {
			switch other, taken := of[b.Name]; {
			case taken && other == p.Name:
				errs = append(errs, fmt.Errorf("plugin %s has two bindings %q: name one of them by handlers.Named", p.Name, b.Name))
			case taken:
				errs = append(errs, fmt.Errorf("plugins %s and %s both have a binding %q: name one of them by handlers.Named", other, p.Name, b.Name))
			}
			of[b.Name] = p.Name
			all, names = append(all, declared{p, b}), append(names, b.Name)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return all, cfg.KnowBindings(names)
}

// inSection says of an adapter's or plugin's error where its section stands, unless it is of the configuration and says better itself.
func inSection(cfg *config.Config, path string, err error) error {
	known := (*config.Error)(nil)
	if err == nil || errors.As(err, &known) {
		return err
	}
	return cfg.Problem(path, "%s", err)
}
