package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// F054: replicas that start together on an empty database all become ready, and the tables are made once.
func TestF054ReplicasStartTogetherOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]func(t *testing.T) []string{
		"sqlite": func(*testing.T) []string { return nil },
		"postgres": func(t *testing.T) []string {
			db := testenv.Postgres(t)
			return []string{"DATABASE=postgres", "DATABASES__POSTGRES__DSN=" + db.DSN, "DATABASES__POSTGRES__SCHEMA=" + db.Schema, "DATABASES__POSTGRES__MAX_OPEN=4"}
		},
		"mysql": func(t *testing.T) []string {
			return []string{"DATABASE=mysql", "DATABASES__MYSQL__DSN=" + testenv.MySQL(t).DSN, "DATABASES__MYSQL__MAX_OPEN=4"}
		},
	} {
		for round := range 3 {
			t.Run(fmt.Sprintf("%s/%d", name, round), func(t *testing.T) {
				c := newConsole(t, Builtin(), settings(t)...)
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				defer cancel()
				apps := make([]*App, 6)
				var together errgroup.Group
				for i := range apps {
					apps[i] = c.app()
					together.Go(func() error { return errors.Join(apps[i].Open(ctx), apps[i].prepare(ctx)) })
				}
				require.NoError(t, together.Wait())
				pending, err := apps[0].pending(ctx)
				require.NoError(t, err)
				require.Empty(t, pending)
				for _, a := range apps {
					require.NoError(t, a.Close())
				}
			})
		}
	}
}

// F055: a second process with the same address for metrics ends at once with one line that says why, and consumes nothing.
func TestF055StartedTwiceWithOneAddress(t *testing.T) {
	t.Parallel()
	first, second := &tally{}, &tally{}
	c := newConsole(t, first.set())
	run := c.start()
	address := listens.FindStringSubmatch(run.errs.String())[1]

	again := c.with("ADMIN__LISTEN=" + address)
	again.set = second.set()
	began := time.Now()
	text := again.fails(ExitFailed, "run")
	require.Less(t, time.Since(began), 20*time.Second)
	require.Equal(t, 1, strings.Count(text, "\n"), "one line: %s", text)
	require.Contains(t, text, "admin.listen: cannot listen on "+address)
	require.Contains(t, text, "address already in use")

	for i := range 20 {
		c.publish(tallyTopic, fmt.Sprintf("k-%d", i), "{}")
	}
	c.waitEffects(20)
	require.Zero(t, second.runs.Load())
}

// F055: with an address of its own it is a second replica. When the first one ends, also the one that serves the
// embedded broker, the other goes on.
func TestF055StartedTwiceIsTwoReplicas(t *testing.T) {
	t.Parallel()
	first, second := &tally{}, &tally{}
	c := newConsole(t, first.set(), "RETENTION__CLEAN_EVERY=50ms")
	run := c.start()
	replica := *c
	replica.set = second.set()
	other := replica.start()
	const messages = 60
	send := func(from, to int) {
		for i := from; i < to; i++ {
			replica.publish(tallyTopic, fmt.Sprintf("k-%d", i), "{}")
		}
	}
	send(0, messages/2)
	replica.waitEffects(messages / 2)
	code, _ := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	other.until(http.StatusOK)
	before := second.runs.Load()
	send(messages/2, messages)
	replica.waitEffects(messages)
	require.Greater(t, second.runs.Load(), before)
	require.EqualValues(t, messages, first.runs.Load()+second.runs.Load())
	code, _ = other.end()
	require.Equal(t, ExitOK, code, other.errs)
}

// waitEffects waits until there are n effects, and fails where there are more.
func (c *console) waitEffects(n int) {
	c.t.Helper()
	testenv.Eventually(c.t, 90*time.Second, func() error {
		got := c.effects("")
		require.LessOrEqual(c.t, got, n)
		if got < n {
			return fmt.Errorf("%d of %d effects", got, n)
		}
		return nil
	})
}

// What is half opened is closed: the database is there, the broker is not.
func TestOpenThatFailsHalfWayIsClosed(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(), "BROKER=nats", "BROKERS__NATS__URL=nats://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	a := c.app()
	require.ErrorContains(t, a.Open(ctx), "open broker nats")
	require.NotNil(t, a.store)
	require.ErrorContains(t, a.Ready(ctx), "starting")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "twice is harmless")
	require.NoError(t, c.app().Close(), "before Open too")
}

// Run that fails before it consumes leaves nothing behind that Close does not end (goroutines are counted at the end of all tests).
func TestRunThatFailsInPreparation(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(), "MIGRATE=verify")
	a := c.app()
	require.NoError(t, a.Open(t.Context()))
	require.ErrorContains(t, a.Run(t.Context(), nil), "migrate up")
	require.ErrorContains(t, a.Ready(t.Context()), "starting")
	require.NoError(t, a.Close())
}

func TestSignalBeforeAnythingIsConsumed(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(), "BROKER=nats", "BROKERS__NATS__URL=nats://127.0.0.1:1")
	run := c.launch()
	run.until(http.StatusServiceUnavailable)
	status, text, err := run.get("/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "alive\n", text)
	_, text, _ = run.get("/readyz")
	require.Equal(t, "starting\n", text)
	code, took := run.end()
	require.Equal(t, ExitOK, code, run.errs)
	require.Less(t, took, 10*time.Second)
	require.Contains(t, run.errs.String(), "stopped before anything was consumed")
}

// deaf is a broker on which nobody can subscribe to one topic.
type deaf struct {
	broker.Broker
	topic string
}

func (d deaf) Subscriber(sub broker.Subscription) (broker.Subscriber, error) {
	s, err := d.Broker.Subscriber(sub)
	if err != nil || sub.Topic != d.topic {
		return s, err
	}
	return deafSubscriber{s}, nil
}

type deafSubscriber struct{ broker.Subscriber }

func (deafSubscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("nobody listens")
}

// When a subscription cannot begin, the others are stopped and the process ends; it is never half alive.
func TestASubscriptionThatCannotBeginEndsTheProcess(t *testing.T) {
	t.Parallel()
	set := Builtin()
	for i, f := range set.Brokers {
		set.Brokers[i].Open = func(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
			b, err := f.Open(ctx, decode, opts)
			return deaf{b, "journal.append"}, err
		}
	}
	c := newConsole(t, set)
	run := c.launch()
	select {
	case <-run.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on, half alive")
	}
	require.Equal(t, ExitFailed, run.code)
	require.Contains(t, run.errs.String(), "nobody listens")
	_, _, err := run.get("/healthz")
	require.Error(t, err, "the admin server has ended, too")
}
