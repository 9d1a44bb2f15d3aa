package app

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// What does not go together is refused before anything is connected, and the text says what to change.
func TestSetsThatCannotBe(t *testing.T) {
	t.Parallel()
	bound := func(plugin string, opts ...handlers.Option) handlers.Plugin {
		return handlers.Plugin{Name: plugin, Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			for _, opt := range opts {
				b.On(tallyTopic, (&tally{}).handle, opt)
			}
			return nil
		})}
	}
	for name, c := range map[string]struct {
		plugins []handlers.Plugin
		env     []string
		says    string
	}{
		"a name of a built-in plugin": {
			append(Builtin().Plugins, bound("payments", handlers.Named("mine"))), nil,
			`plugin "payments" is registered twice: give one of them another name`,
		},
		"a binding's name of another plugin": {
			[]handlers.Plugin{bound("one", handlers.Named("add")), bound("two", handlers.Named("add"))}, nil,
			`plugins one and two both have a binding "add": name one of them by handlers.Named`,
		},
		"a binding's name given twice": {
			[]handlers.Plugin{bound("one", handlers.Named("add"), handlers.Named("add"))}, nil,
			`plugin one has two bindings "add": name one of them by handlers.Named`,
		},
		"one scope": {
			[]handlers.Plugin{bound("one", handlers.Named("one")), bound("two", handlers.Named("two"))}, []string{"BINDINGS__TWO__SCOPE=oncemill/one"},
			`bindings one and two would share keys and queue "oncemill.one": a message would count for one of them only; give one another scope`,
		},
		"scopes of one queue": {
			[]handlers.Plugin{bound("one", handlers.Named("one")), bound("two", handlers.Named("two"))}, []string{"BINDINGS__TWO__SCOPE=oncemill.one"},
			`would share keys and queue "oncemill.one"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := Builtin()
			set.Plugins = c.plugins
			console := newConsole(t, set, c.env...)
			for _, command := range [][]string{{"run"}, {"config", "check"}} {
				a := console.do(command...)
				require.NotEqual(t, ExitOK, a.code)
				require.Contains(t, a.errs, c.says)
			}
		})
	}
}

// A plugin without tables for the chosen database is named, with what to do; switched off it is no trouble.
func TestPluginWithoutTablesForTheDatabase(t *testing.T) {
	t.Parallel()
	l := &tally{}
	set := l.set()
	other := handlers.Plugin{
		Name: "other", Migrations: fstest.MapFS{"postgres/00001_init.sql": {Data: []byte("-- +goose Up\n")}},
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.On("other.add", l.handle)
			return nil
		}),
	}
	set.Plugins = append(set.Plugins, other)
	c := newConsole(t, set)
	const says = `plugin other has no tables for database sqlite: add the folder "sqlite" to its migrations, choose another database, or set plugins.other.enabled to false`
	for _, command := range [][]string{{"run"}, {"migrate", "up"}, {"migrate", "status"}} {
		require.Contains(t, c.fails(ExitUsage, command...), says)
	}
	c.with("PLUGINS__OTHER__ENABLED=false").ok("migrate", "up")
}

// A binding whose name changed keeps its keys and its queue with the old scope: what was handled is a duplicate, and what waited in the queue is handled.
func TestRenamedBindingKeepsItsScope(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	run := c.start()
	c.publish(tallyTopic, "before", `{}`)
	c.waitKey(tallyScope, "before", "completed")
	run.end()
	c.publish(tallyTopic, "meanwhile", `{}`)

	renamed := l.set()
	renamed.Plugins[0].Open = handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
		b.On(tallyTopic, l.handle, handlers.Named("counting"))
		return nil
	})
	c = c.with("BINDINGS__COUNTING__SCOPE=" + tallyScope)
	c.set = renamed
	run = c.start()
	c.publish(tallyTopic, "before", `{}`)
	c.publish(tallyTopic, "after", `{}`)
	testenv.Eventually(t, 20*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="duplicate"`, 1) })
	for _, key := range []string{"meanwhile", "after"} {
		c.waitKey(tallyScope, key, "completed")
	}
	require.Equal(t, 1, c.effects("before"))
	require.EqualValues(t, 3, l.runs.Load())
}
