package app

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// confirming is an application whose binding "tally" confirms each effect to "tally.added", where "heard" counts the confirmations.
func confirming() (*tally, Set) {
	l, heard := &tally{}, &tally{}
	l.does(announce)
	p := l.plugin()
	p.Open = func(_ func(any) error, b *handlers.Bindings) error {
		b.On(tallyTopic, l.handle)
		b.On("tally.added", func(ctx context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
			return heard.handle(ctx, tx, msg)
		}, handlers.Named("heard"))
		return nil
	}
	set := l.set()
	set.Plugins = []handlers.Plugin{p}
	return l, set
}

// A producer that did not see its confirmation asks again, or a person sends it again: it goes out once more under its first identity, and nothing runs.
func TestConfirmationsAreSentAgain(t *testing.T) {
	t.Parallel()
	l, set := confirming()
	c := newConsole(t, set, "BINDINGS__TALLY__ON_DUPLICATE=resend")
	run := c.start()
	copies := func(n float64) {
		testenv.Eventually(t, 30*time.Second, func() error {
			return run.counts("oncemill_messages_total", `kind="duplicate",scope="oncemill/heard"`, n)
		})
	}
	c.publish(tallyTopic, "order-1", `{}`)
	c.waitKey(tallyScope, "order-1", "completed")
	testenv.Eventually(t, 30*time.Second, func() error {
		return run.counts("oncemill_messages_total", `kind="completed",scope="oncemill/heard"`, 1)
	})

	c.publish(tallyTopic, "order-1", `{}`)
	copies(1)
	require.NoError(t, run.counts("oncemill_failures_total", `kind="duplicate",reason="resent",scope="oncemill/tally"`, 1))
	require.Equal(t, "messages that go out again: 1\n", c.ok("keys", "resend", "order-1", "--scope", tallyScope, "--why", "lost"))
	copies(2)
	require.EqualValues(t, 1, l.runs.Load())
	require.Equal(t, 1+1, c.effects(""), "one effect, and one of the confirmation")

	require.Contains(t, c.fails(ExitUsage, "keys", "resend", "order-1"), `"scope"`)
	c.fails(ExitMissing, "keys", "resend", "order-2", "--scope", tallyScope)
	c.inside(func(ctx context.Context, a *App) {
		story, err := a.store.Keys().List(ctx, keystore.Filter{Scope: "oncemill/heard"})
		require.NoError(t, err)
		require.Len(t, story, 1)
		require.Contains(t, c.fails(ExitRefused, "keys", "resend", story[0].Key, "--scope", "oncemill/heard"), "on_duplicate: resend")
	})
}

// Whoever would take the copy for a new message must not get one.
func TestResendIsRefusedWhereAConsumerForgetsSooner(t *testing.T) {
	t.Parallel()
	_, set := confirming()
	c := newConsole(t, set, "BINDINGS__TALLY__ON_DUPLICATE=resend", "BINDINGS__TALLY__RETENTION=40d", "BINDINGS__HEARD__RETENTION=40d", "BROKERS__EMBEDDED__MAX_AGE=20d")
	text := c.ok("guarantees")
	require.Contains(t, text, "a duplicate within 40d publishes the first run's messages again")
	require.Contains(t, text, "forgets their keys within 40d")
	text = c.with("BINDINGS__HEARD__RETENTION=39d").fails(ExitRefused, "run")
	require.Contains(t, text, "set bindings.heard.retention to at least 40d")
	text = c.with("BINDINGS__HEARD__KEY=position").fails(ExitRefused, "run")
	require.Contains(t, text, "position")
	text = c.with("BINDINGS__HEARD__RETENTION=39d", "BINDINGS__TALLY__ON_DUPLICATE=skip").ok("guarantees")
	require.NotContains(t, text, "first run's messages again")
	require.Contains(t, c.with("BROKER=kafka", "KEYS=kafka", "BROKERS__KAFKA__BROKERS=127.0.0.1:1").fails(ExitUsage, "config", "check"), "resend needs the keys in the database")
	require.Contains(t, c.with("KEYS=redis", "DATABASES__REDIS__URL=redis://127.0.0.1:1").fails(ExitUsage, "config", "check"), "resend needs the keys in the database")
}
