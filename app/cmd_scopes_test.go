package app

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// A renamed handler keeps its keys where its scope is kept by hand. Else the start names the scope, whose keys can go when they have expired.
func TestScopesOfRenamedBindings(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	run := c.start()
	c.publish(tallyTopic, "k", "{}")
	c.waitKey(tallyScope, "k", "completed")
	require.Contains(t, c.fails(ExitRefused, "keys", "clean", tallyScope), "binding tally uses")
	run.end()

	renamed := l.set()
	renamed.Plugins[0].Name, renamed.Plugins[0].Migrations = "abacus", nil // the table is there
	c.set = renamed
	kept := c.with("BINDINGS__ABACUS__SCOPE=" + tallyScope)
	run = kept.start()
	kept.publish(tallyTopic, "k", "{}")
	testenv.Eventually(t, 20*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="duplicate"`, 1) })
	require.EqualValues(t, 1, l.runs.Load())
	require.NotContains(t, run.errs.String(), "used by no binding")
	require.Contains(t, kept.fails(ExitRefused, "keys", "clean", tallyScope), "binding abacus uses")
	run.end()

	run = c.start()
	require.Regexp(t, `used by no binding.*scope=oncemill/tally keys=1`, run.errs.String())
	run.end()
	forgotten := scopeView{Scope: tallyScope, Keys: 1}
	require.Contains(t, decode[[]scopeView](c, "keys", "scopes"), forgotten)
	require.Contains(t, c.ok("keys", "clean", tallyScope), "removed: 0; others, which stay: 1")
	require.Contains(t, decode[[]scopeView](c, "keys", "scopes"), forgotten)
	c.inside(func(ctx context.Context, a *App) {
		_, err := a.store.DB().ExecContext(ctx, `UPDATE processed_events SET expires_at = processed_at WHERE scope = ?`, tallyScope)
		require.NoError(t, err)
	})
	require.Contains(t, c.ok("keys", "clean", tallyScope), "removed: 1; others, which stay: 0")
	require.Contains(t, c.fails(ExitMissing, "keys", "clean", tallyScope), "no key")
}

func TestAShardsScopeIsItsBindings(t *testing.T) {
	t.Parallel()
	a := newConsole(t, (&tally{}).set()).app()
	require.Equal(t, "tally", a.bindingOf("oncemill/tally@3"))
	require.Empty(t, a.bindingOf("oncemill/tally-3"))
	require.NoError(t, a.Close())
}
