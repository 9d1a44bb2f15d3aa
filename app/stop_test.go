package app

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// stuck makes the handler block, whatever its context says, until the returned function or the test's end lets it go.
func (l *tally) stuck(t *testing.T) (release func()) {
	held := make(chan struct{})
	l.does(func(context.Context, handlers.Tx, *message.Message) error {
		<-held
		return nil
	})
	release = func() {
		select {
		case <-held:
		default:
			close(held)
		}
	}
	t.Cleanup(release)
	return release
}

// serveBroker serves the folder's embedded broker until the test ends, so that it outlives the processes that consume.
func (c *console) serveBroker() {
	c.t.Helper()
	a := c.app()
	c.t.Cleanup(func() { require.NoError(c.t, a.Close()) })
	require.NoError(c.t, a.openBroker(c.t.Context()))
}

// waitRuns waits until the handler was called n times.
func (l *tally) waitRuns(t *testing.T, n int64) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		if got := l.runs.Load(); got < n {
			return fmt.Errorf("%d of %d calls", got, n)
		}
		return nil
	})
}

// F033: what runs at the stop finishes, is recorded, published and acked; what waits is handed back; after a restart all is done once.
func TestF033StopFinishesOrHandsBack(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BINDINGS__TALLY__CONCURRENCY=4")
	l.does(func(ctx context.Context, tx handlers.Tx, msg *message.Message) error {
		select {
		case <-time.After(400 * time.Millisecond): // work that looks at its context
		case <-ctx.Done():
			return ctx.Err()
		}
		return announce(ctx, tx, msg)
	})
	c.serveBroker()
	run := c.start()
	const messages = 24
	for i := range messages {
		c.publish(tallyTopic, fmt.Sprintf("k-%d", i), "{}")
	}
	l.waitRuns(t, 5)
	code, took := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	require.Less(t, took, 10*time.Second)
	done := c.effects("")
	require.Greater(t, done, 4, "those that ran have finished")
	require.Less(t, done, messages)
	require.EqualValues(t, done, l.runs.Load(), "nobody was cut off")
	require.Len(t, decode[[]keyView](c, "keys", "list", "--state", "completed"), done)
	require.Empty(t, decode[[]keyView](c, "keys", "list", "--state", "in_progress"))

	l.does(announce)
	c.start()
	c.waitEffects(messages)
	require.EqualValues(t, messages, l.runs.Load(), "each message ran once")
}

// F032: handlers that overrun their timeout and look at nothing free their slots, are counted, and cannot commit late; a stop does not wait for them.
func TestF032HandlersThatIgnoreTheirDeadline(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BINDINGS__TALLY__CONCURRENCY=4", "BINDINGS__TALLY__TIMEOUT=300ms", "SHUTDOWN_TIMEOUT=5s",
		"BINDINGS__TALLY__RETRY__IN_PROCESS=0s", "BINDINGS__TALLY__RETRY__FIRST=1m")
	release := l.stuck(t)
	run := c.start()
	for i := range 4 {
		c.publish(tallyTopic, fmt.Sprintf("stuck-%d", i), "{}")
	}
	l.waitRuns(t, 4)
	testenv.Eventually(t, 20*time.Second, func() error { return run.counts("oncemill_stuck_handlers", tallyScope, 4) })
	l.does(accept)
	c.publish(tallyTopic, "fifth", "{}")
	c.waitKey(tallyScope, "fifth", "completed")

	code, took := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	require.Less(t, took, 5*time.Second)
	release()
	require.Equal(t, 1, c.effects(""), "nothing of the four is committed")
	require.Len(t, decode[[]rowView](c, "dlq", "list", "--all"), 4, "they wait for their retry")
}

// The shutdown timeout holds whatever the handlers do, and a second signal does not even wait for that.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		grace  time.Duration
		forced bool
		within time.Duration
	}{
		"by the shutdown timeout": {grace: 2 * time.Second, within: 3 * time.Second},
		"by a second signal":      {grace: time.Minute, forced: true, within: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &tally{}
			c := newConsole(t, l.set(), "SHUTDOWN_TIMEOUT="+one.grace.String())
			release := l.stuck(t)
			c.serveBroker()
			run := c.start()
			c.publish(tallyTopic, "k", "{}")
			l.waitRuns(t, 1)
			run.stop()
			run.until(http.StatusServiceUnavailable)
			_, text, err := run.get("/readyz")
			require.NoError(t, err)
			require.Equal(t, "stopping\n", text)
			status, _, err := run.get("/healthz")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, status, "it is alive while it stops")
			if one.forced {
				close(run.force)
			}
			code, took := run.end()
			require.Equal(t, ExitFailed, code, "somebody was cut off, and that is said")
			require.Contains(t, run.errs.String(), "handlers were cut off")
			require.Less(t, took, one.within)
			release()
			require.Zero(t, c.effects(""))

			l.does(accept)
			c.start()
			restarted := time.Now()
			c.waitEffects(1)
			require.Less(t, time.Since(restarted), 8*time.Second, "what was cut off is delivered again at once, not when the server misses it")
		})
	}
}

// A database that is there and does not answer cannot hold up a stop.
func TestStopWithADatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l := &tally{}
	db := testenv.Postgres(t)
	u, err := url.Parse(db.DSN)
	require.NoError(t, err)
	between := silenceTo(t, u.Host)
	u.Host = between.listener.Addr().String()
	direct := newConsole(t, l.set(), "SHUTDOWN_TIMEOUT=4s", "DATABASE=postgres", "DATABASES__POSTGRES__SCHEMA="+db.Schema, "DATABASES__POSTGRES__DSN="+db.DSN)
	direct.serveBroker()
	run := direct.with("DATABASES__POSTGRES__DSN=" + u.String()).start()
	direct.publish(tallyTopic, "k-0", "{}")
	direct.waitKey(tallyScope, "k-0", "completed")
	between.begin()
	for i := range 10 {
		direct.publish(tallyTopic, fmt.Sprintf("k-%d", i), "{}")
	}
	run.until(http.StatusServiceUnavailable)
	code, took := run.end()
	require.Equal(t, ExitFailed, code)
	require.Less(t, took, 7*time.Second) // the grace, and what closing the connections takes
	direct.start()
	direct.waitEffects(10)
}

// /readyz follows the database; /healthz does not, so that an outage of the database restarts nobody.
func TestReadyFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c, proxy := behindProxy(t, l.set())
	run := c.start()
	proxy.Cut()
	run.until(http.StatusServiceUnavailable)
	_, text, err := run.get("/readyz")
	require.NoError(t, err)
	require.Equal(t, "database postgres does not answer\n", text)
	status, _, err := run.get("/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	c.publish(tallyTopic, "k", "{}")
	proxy.Restore()
	run.until(http.StatusOK)
	c.waitEffects(1)
	code, _ := run.end()
	require.Equal(t, ExitOK, code, run.errs)
}

// behindProxy is a console with PostgreSQL behind a proxy.
func behindProxy(t *testing.T, set Set, env ...string) (*console, *testenv.TCPProxy) {
	t.Helper()
	db := testenv.Postgres(t)
	u, err := url.Parse(db.DSN)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	return newConsole(t, set, append([]string{
		"DATABASE=postgres", "DATABASES__POSTGRES__DSN=" + u.String(), "DATABASES__POSTGRES__SCHEMA=" + db.Schema,
	}, env...)...), proxy
}
