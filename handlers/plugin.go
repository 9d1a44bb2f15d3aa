// Package handlers is the contract of a plugin: what it declares, the three kinds of
// handler, the transaction that a handler gets, and the errors that it may return.
//
// # Guarantees
//
// A transactional handler's statements, result and published messages commit together with the
// message's key, or not at all: whatever crashes, is lost or is sent twice, the effect happens
// exactly once. What a handler does outside its Tx (another connection, an HTTP call, a file) is outside the
// promise: write an External handler for it.
//
// A Transform has no transaction of its own: the messages that it publishes leave exactly once, with its message's key.
//
// An external handler's Call may have its effect without its outcome being known. The binding's unknown-outcome
// policy then decides; its Record runs exactly once.
package handlers

import (
	"fmt"
	"io/fs"
	"time"
)

// Plugin is a named set of bindings with its tables and configuration.
type Plugin struct {
	// Name is lower case letters, digits and '-', unique in an application. It names the section of the
	// configuration and the first part of its bindings' scopes.
	Name string
	// Migrations has a folder for each SQL dialect ("postgres", "sqlite", "mysql") with goose
	// files; nil for a plugin without tables. A missing dialect is refused at start.
	Migrations fs.FS
	// Retention is how long keys are kept unless the configuration says otherwise. Defaults to 7 days.
	Retention time.Duration
	// Guarantee says in a few sentences what the plugin promises and what not; it is printed by "oncemill guarantees".
	Guarantee string
	// Publishes lists the logical topics that the handlers publish to, so that they exist before the first message.
	Publishes []string
	// OptIn leaves the plugin off unless the configuration enables it.
	OptIn bool
	// Replaces names the plugin whose work this one does in another place: the configuration must not enable both.
	Replaces string
	// Trial lets "oncemill prove" run the plugin under faults on the configured broker and database; nil for one that it leaves out.
	Trial *Trial
	// Open decodes the configuration and declares the bindings. Make it with the function Open.
	Open OpenFunc
}

// OpenFunc declares a plugin's bindings. decode fills a pointer to the plugin's configuration, strictly.
type OpenFunc func(decode func(any) error, b *Bindings) error

// Open makes an OpenFunc from a function with a typed configuration. C's zero value, or
// what its method Defaults() C returns, is what stands before decoding.
func Open[C any](open func(cfg C, b *Bindings) error) OpenFunc {
	return func(decode func(any) error, b *Bindings) error {
		var cfg C
		if d, ok := any(cfg).(interface{ Defaults() C }); ok {
			cfg = d.Defaults()
		}
		if err := decode(&cfg); err != nil {
			return err
		}
		if v, ok := any(cfg).(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				return err
			}
		}
		return open(cfg, b)
	}
}

// Binding ties one logical topic to one handler.
type Binding struct {
	// Name is unique in the application; the first binding of a plugin defaults to the plugin's name, every
	// other to plugin-topic.
	Name  string
	Topic string
	// Exactly one of the three is set.
	Handler   Handler
	External  *External
	Transform Transform
	// Order asks that messages with one ordering key are handled in their order over all replicas; a broker that cannot
	// promise that refuses the binding.
	Order bool
}

// Bindings collects what a plugin declares.
type Bindings struct {
	// MaxPayload is the largest payload in bytes that the application publishes; 0 is the contract's 1 MiB. It stands before Open is called.
	MaxPayload int

	plugin string
	list   []Binding
}

// NewBindings returns an empty collection for the plugin of that name.
func NewBindings(plugin string) *Bindings { return &Bindings{plugin: plugin} }

// On binds a transactional handler to a topic.
func (b *Bindings) On(topic string, h Handler, opts ...Option) {
	b.add(Binding{Topic: topic, Handler: h}, opts)
}

// OnExternal binds an external handler to a topic.
func (b *Bindings) OnExternal(topic string, e External, opts ...Option) {
	b.add(Binding{Topic: topic, External: &e}, opts)
}

// Transform binds a handler that turns messages into messages to a topic. List the topics that it publishes to in Plugin.Publishes.
func (b *Bindings) Transform(topic string, t Transform, opts ...Option) {
	b.add(Binding{Topic: topic, Transform: t}, opts)
}

func (b *Bindings) add(binding Binding, opts []Option) {
	binding.Name = b.plugin
	if len(b.list) > 0 {
		binding.Name = b.plugin + "-" + binding.Topic
	}
	for _, opt := range opts {
		opt(&binding)
	}
	b.list = append(b.list, binding)
}

// List returns the bindings in the order of their declaration.
func (b *Bindings) List() []Binding { return b.list }

// Option changes a binding at its declaration.
type Option func(*Binding)

// Named gives a binding its name.
func Named(name string) Option { return func(b *Binding) { b.Name = name } }

// Ordered sets Binding.Order.
func Ordered() Option { return func(b *Binding) { b.Order = true } }

// Validate checks what a plugin declares, without opening it.
func (p Plugin) Validate() error {
	if p.Name == "" {
		return fmt.Errorf("plugin without a name")
	}
	for _, r := range p.Name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("plugin %q: the name may have lower case letters, digits and '-'", p.Name)
		}
	}
	if p.Open == nil {
		return fmt.Errorf("plugin %q: Open is missing", p.Name)
	}
	if p.Trial != nil && (p.Trial.Payload == nil || p.Trial.Check == nil) {
		return fmt.Errorf("plugin %q: a Trial needs both Payload and Check", p.Name)
	}
	return nil
}
