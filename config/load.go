package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
)

// LoadOptions say where the configuration comes from.
type LoadOptions struct {
	// File is the path of a YAML file. Empty: the one that ONCEMILL_CONFIG names, else none.
	File string
	// Env is the environment, as os.Environ returns it.
	Env []string
	// Flags are values from the command line by their dotted path, such as "bindings.payments.retention".
	Flags map[string]string
	// Known is what the program has linked in.
	Known Known
	// Defaults stand before everything else. Nil is Defaults().
	Defaults *Config
}

// Known is the names that the program has linked in. A nil list checks no names of its kind.
type Known struct {
	Brokers   []string
	Databases []string
	// Keys are the places for keys: "database", and names of key stores.
	Keys     []string
	Plugins  []string
	Bindings []string
}

// names returns the list that a tag names.
func (k Known) names(tag string) []string {
	switch tag {
	case "brokers":
		return k.Brokers
	case "databases":
		return k.Databases
	case "keys":
		return k.Keys
	case "stores":
		return k.stores()
	case "plugins":
		return k.Plugins
	case "bindings":
		return k.Bindings
	}
	return nil
}

// stores are the names of sections below databases: databases, and key stores that are not kept in the database or the broker.
func (k Known) stores() []string {
	if k.Databases == nil {
		return nil
	}
	stores := slices.Clone(k.Databases)
	for _, key := range k.Keys {
		if key != "database" && !slices.Contains(stores, key) && !slices.Contains(k.Brokers, key) {
			stores = append(stores, key)
		}
	}
	return stores
}

// loader keeps what a configuration was made of.
type loader struct {
	root    *node
	over    []override
	known   Known
	origins map[string]origin
}

// Load reads, decodes and checks the configuration. The error is an *Error with all problems, or says why the file cannot be read.
func Load(opts LoadOptions) (*Config, error) {
	l := &loader{known: opts.Known, origins: map[string]origin{}}
	over, envFile := overridesOf(opts.Env, opts.Flags)
	l.over = over
	p := &problems{}
	file := opts.File
	if file == "" {
		file = envFile
	}
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, readError(file, err)
		}
		l.root = parseYAML(file, content, p)
	}
	c := opts.Defaults
	if c == nil {
		c = Defaults()
	}
	c.loaded = l
	d := decoder{problems: p, known: opts.Known, origins: l.origins}
	d.value(reflect.ValueOf(c).Elem(), l.root, over, "", rules{})
	c.check(p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func readError(file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration file %s does not exist; name another by --config or %s", file, EnvFile)
	}
	return fmt.Errorf("read configuration: %w", err)
}

// KnowBindings tells the names of the bindings, which are known only once the plugins have been opened with their
// configuration. It refuses names in the configuration that no binding has, and finds the place of environment variables
// for names that are spelt differently there ("mail-order.paid" is MAIL_ORDER_PAID).
func (c *Config) KnowBindings(names []string) error {
	l := c.loaded
	if l == nil {
		return nil
	}
	if names == nil {
		names = []string{}
	}
	l.known.Bindings = names
	p := &problems{}
	d := decoder{problems: p, known: l.known, origins: l.origins}
	matched, _ := splitOverrides(l.over, []string{"bindings"})
	c.Bindings = nil
	d.value(reflect.ValueOf(&c.Bindings).Elem(), l.root.find("bindings"), matched["bindings"], "bindings", rules{known: "bindings"})
	return p.err()
}

// Where returns where the value at a dotted path was written, such as "oncemill.yaml:12" or
// "ONCEMILL_KEYS"; "" where it is a default. Of a section it is where its name stands in the file.
func (c *Config) Where(path string) string {
	if c.loaded == nil {
		return ""
	}
	if at, ok := c.loaded.origins[path]; ok {
		return at.String()
	}
	return ""
}

// Problem makes an error about the value at a dotted path, for checks that only the application can do.
func (c *Config) Problem(path, format string, args ...any) error {
	return &Error{[]Problem{{Where: c.Where(path), Path: path, Text: fmt.Sprintf(format, args...)}}}
}
