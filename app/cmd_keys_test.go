package app

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

const tallyScope = "oncemill/tally"

func TestPublishTwiceIsOneEffect(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	run := c.start()

	c.publish(tallyTopic, "order-1", `{"n":1}`)
	story := c.waitKey(tallyScope, "order-1", "completed")
	require.JSONEq(t, `{"counted":1}`, string(story.Result))
	require.NotZero(t, story.ProcessedAt)
	require.Greater(t, story.ExpiresAt.Sub(story.ProcessedAt), 6*24*time.Hour)

	text := c.ok("keys", "show", "order-1")
	require.Contains(t, text, "oncemill/tally  order-1\n")
	require.Contains(t, text, `{"counted":1}`)

	c.publish(tallyTopic, "order-1", `{"n":1}`)
	testenv.Eventually(t, 20*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="duplicate"`, 1) })
	require.Equal(t, 1, c.effects("order-1"))
	require.EqualValues(t, 1, l.runs.Load())

	code, _ := run.end()
	require.Equal(t, ExitOK, code, run.errs)
}

func TestKeysListFilters(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	c.start()
	for _, key := range []string{"a-1", "a-2", "b-1"} {
		c.publish(tallyTopic, key, `{}`)
		c.waitKey(tallyScope, key, "completed")
	}
	keys := func(args ...string) []string {
		var names []string
		for _, k := range decode[[]keyView](c, append([]string{"keys", "list"}, args...)...) {
			names = append(names, k.Key)
		}
		return names
	}
	require.ElementsMatch(t, []string{"a-1", "a-2", "b-1"}, keys())
	require.ElementsMatch(t, []string{"a-1", "a-2"}, keys("--prefix", "a-"))
	require.Len(t, keys("--limit", "2"), 2)
	require.ElementsMatch(t, []string{"a-1", "a-2", "b-1"}, keys("--state", "completed", "--scope", tallyScope))
	require.Empty(t, keys("--state", "failed"))
	require.Empty(t, keys("--scope", "oncemill/other"))
	require.Equal(t, "[]\n", c.ok("keys", "list", "--state", "in_doubt", "--json"), "an empty list is a list")

	require.Contains(t, c.ok("keys", "list"), "SCOPE")
	require.Contains(t, c.fails(ExitUsage, "keys", "list", "--state", "done"), "in_progress, completed, failed, in_doubt")
	c.fails(ExitUsage, "keys", "list", "--limit", "0")
	require.Contains(t, c.fails(ExitMissing, "keys", "show", "c-1"), "never seen")
}

// "Charged twice": the same payment came under two keys, and both had their effect. The fingerprint finds the other one.
func TestKeysOfTheSameFingerprint(t *testing.T) {
	t.Parallel()
	l := &tally{}
	payments := l.plugin()
	payments.Open = func(_ func(any) error, b *handlers.Bindings) error {
		b.On(tallyTopic, l.handle, handlers.Named("pay"))
		b.On("tally.other", l.handle, handlers.Named("other"))
		return nil
	}
	set := l.set()
	set.Plugins = []handlers.Plugin{payments}
	c := newConsole(t, set)
	c.start()
	for key, payload := range map[string]string{"pay-1": `{"n":1}`, "pay-1-retry": `{"n":1}`, "pay-2": `{"n":2}`} {
		c.publish(tallyTopic, key, payload)
		c.waitKey("oncemill/pay", key, "completed")
	}
	c.publish("tally.other", "pay-1", `{"n":2}`)
	c.waitKey("oncemill/other", "pay-1", "completed")

	twins := func(args ...string) (found []string) {
		for _, k := range decode[[]keyView](c, append([]string{"keys", "list", "--same-fingerprint"}, args...)...) {
			found = append(found, k.Scope+" "+k.Key)
		}
		return found
	}
	require.ElementsMatch(t, []string{"oncemill/pay pay-1", "oncemill/pay pay-1-retry", "oncemill/other pay-1"}, twins("pay-1"))
	require.ElementsMatch(t, []string{"oncemill/pay pay-1", "oncemill/pay pay-1-retry"}, twins("pay-1-retry"))
	require.ElementsMatch(t, []string{"oncemill/pay pay-1", "oncemill/pay pay-1-retry"}, twins("pay-1", "--scope", "oncemill/pay"))
	require.Equal(t, []string{"oncemill/pay pay-2"}, twins("pay-2"), "one in another scope is no twin")
	require.Contains(t, c.fails(ExitMissing, "keys", "list", "--same-fingerprint", "pay-3"), "never seen")
	require.Contains(t, c.fails(ExitMissing, "keys", "list", "--same-fingerprint", "pay-2", "--scope", "oncemill/other"), "never seen")
	c.fails(ExitUsage, "keys", "list", "--same-fingerprint", "pay-1", "--fingerprint", "x")
}

func TestForgetNeedsForce(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	c.start()
	c.publish(tallyTopic, "k", `{}`)
	c.waitKey(tallyScope, "k", "completed")

	require.Contains(t, c.fails(ExitRefused, "keys", "forget", "k", "--scope", tallyScope), "--force")
	c.waitKey(tallyScope, "k", "completed")
	require.Contains(t, c.fails(ExitUsage, "keys", "forget", "k", "--force"), `"scope"`)
	c.fails(ExitMissing, "keys", "forget", "other", "--scope", tallyScope, "--force")

	c.ok("keys", "forget", "k", "--scope", tallyScope, "--force", "--why", "test")
	c.fails(ExitMissing, "keys", "show", "k")
	c.publish(tallyTopic, "k", `{}`)
	c.waitKey(tallyScope, "k", "completed")
	require.Equal(t, 2, c.effects("k"), "a forgotten key runs again")
}

// A letter whose receipt the server did not confirm is in doubt; a person decides, in each of the three ways.
func TestResolveALetterInDoubt(t *testing.T) {
	t.Parallel()
	sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{DropKept: 3}})
	host, port, err := net.SplitHostPort(sink.Addr())
	require.NoError(t, err)
	set := Builtin()
	c := newConsole(t, set,
		"PLUGINS__EMAIL__CONFIG__TRANSPORT=smtp", "PLUGINS__EMAIL__CONFIG__FROM=shop@example.org",
		"PLUGINS__EMAIL__CONFIG__SMTP__HOST="+host, "PLUGINS__EMAIL__CONFIG__SMTP__PORT="+port, "PLUGINS__EMAIL__CONFIG__SMTP__TLS=none",
	)
	c.start("--only", "email-requested")
	const scope = "oncemill/email-requested"
	for _, key := range []string{"done", "retry", "failed"} {
		c.publish("email.requested", key, `{"to":"alice@example.org","subject":"hello","text":"`+key+`"}`)
		story := c.waitKey(scope, key, "in_doubt")
		require.Len(t, story.Parked, 1)
		require.Equal(t, "in_doubt", story.Parked[0].State)
	}
	require.Len(t, sink.Letters(), 3, "the server has them, the sender cannot know")
	require.Len(t, decode[[]keyView](c, "keys", "list", "--state", "in_doubt"), 3)
	require.Contains(t, c.fails(ExitRefused, "keys", "forget", "done", "--scope", scope, "--force"), "doubt")

	c.fails(ExitUsage, "keys", "resolve", "done", "--scope", scope, "--as", "perhaps")
	c.fails(ExitUsage, "keys", "resolve", "done", "--scope", scope, "--as", "done", "--result", "{")
	c.fails(ExitMissing, "keys", "resolve", "nobody", "--scope", scope, "--as", "done")

	c.ok("keys", "resolve", "done", "--scope", scope, "--as", "done", "--result", `{"seen":true}`, "--by", "ann", "--why", "in the server's log")
	story := c.waitKey(scope, "done", "completed")
	require.JSONEq(t, `{"seen":true}`, string(story.Result))
	require.Contains(t, c.fails(ExitRefused, "keys", "resolve", "done", "--scope", scope, "--as", "retry"), "not in doubt")

	c.ok("keys", "resolve", "failed", "--scope", scope, "--as", "failed", "--by", "ann")
	c.waitKey(scope, "failed", "failed")
	dead := decode[[]rowView](c, "dlq", "list", "--key", "failed")
	require.Len(t, dead, 1)
	require.Equal(t, "ann", dead[0].History[len(dead[0].History)-1].By)

	c.ok("keys", "resolve", "retry", "--scope", scope, "--as", "retry")
	c.waitKey(scope, "retry", "completed")
	letters := map[string]int{}
	ids := map[string]bool{}
	for _, letter := range sink.Letters() {
		for _, key := range []string{"done", "retry", "failed"} {
			if strings.Contains(string(letter.Data), "\r\n"+key+"\r\n") {
				letters[key]++
			}
		}
		ids[letter.MessageID] = true
	}
	require.Equal(t, map[string]int{"done": 1, "retry": 2, "failed": 1}, letters)
	require.Len(t, ids, 3, "the second try has the first one's Message-ID")
	require.NoFileExists(t, filepath.Join(c.dir, "mail"))
}
