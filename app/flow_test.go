package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

const copyTopic = "copy.in"

// copying is an application of one transform.
func copying(transform handlers.Transform) Set {
	s := Builtin()
	s.Plugins = []handlers.Plugin{{
		Name: "copy", Guarantee: "One copy for each key.", Publishes: []string{"copy.out"},
		Open: func(_ func(any) error, b *handlers.Bindings) error {
			b.Transform(copyTopic, transform)
			return nil
		},
	}}
	return s
}

func copies(ctx context.Context, out handlers.Emitter, payload map[string]any) error {
	if payload["fails"] == true {
		return errors.New("fails")
	}
	if payload["refused"] == true {
		return handlers.Permanent("told-to", "the test wants it")
	}
	return out.Publish(ctx, "copy.out", payload)
}

// onKafka is a console of a set of one plugin on Kafka, with an input and a group of its own.
func onKafka(t *testing.T, set Set, env ...string) *console {
	t.Helper()
	name := testenv.Name(t, "app")
	name = name[len(name)-20:]
	return newConsole(t, set, append([]string{
		"BROKER=kafka", "BROKERS__KAFKA__BROKERS=" + strings.Join(testenv.Kafka(t), ","), "SERVICE=" + name,
		"BINDINGS__" + strings.ToUpper(set.Plugins[0].Name) + "__TOPIC=" + name + ".in",
	}, env...)...)
}

func TestKeysInKafkaAreRefused(t *testing.T) {
	t.Parallel()
	c := newConsole(t, copying(handlers.JSONTransform(copies)), "KEYS=kafka")
	require.Contains(t, c.fails(ExitRefused, "run"), "needs broker kafka")
	require.Contains(t, c.do("guarantees").out, "REFUSED")

	l := &tally{}
	require.Contains(t, onKafka(t, l.set(), "KEYS=kafka").fails(ExitRefused, "run"), "this handler writes to the database")
	holding := onKafka(t, copying(handlers.JSONTransform(copies)), "KEYS=kafka", "BINDINGS__COPY__ORDER=hold", "BINDINGS__COPY__ISOLATION=serializable")
	text := holding.fails(ExitUsage, "run")
	require.Contains(t, text, "hold needs the keys in the database")
	require.Contains(t, text, "database transaction")
	require.Contains(t, c.with("KEYS=redis").fails(ExitUsage, "run"), "redis")
}

func TestKeysInKafka(t *testing.T) {
	t.Parallel()
	c := onKafka(t, copying(handlers.JSONTransform(copies)), "KEYS=kafka", "BINDINGS__COPY__RETRY__FIRST=24h", "BINDINGS__COPY__RETRY__MAX=24h", "BINDINGS__COPY__RETRY__IN_PROCESS=0s", "BINDINGS__COPY__RETENTION=60d")
	run := c.start()
	topic := c.app().bindings[0].topic
	text := c.ok("guarantees")
	require.Contains(t, text, "copy (transform, topic "+topic+"): each produced message is seen exactly once")
	for _, key := range []string{"one", "one", "two"} {
		c.publish(topic, key, `{"n":1}`)
	}
	c.publish(topic, "bad", `{"refused":true}`)
	c.publish(topic, "weak", `{"fails":true}`)

	testenv.Eventually(t, time.Minute, func() error {
		list := c.ok("dlq", "list", "--all", "--handler", "copy")
		if !strings.Contains(list, "told-to") || !strings.Contains(list, "handler-error") {
			return errors.New("not parked yet: " + list)
		}
		return nil
	})
	code, _ := run.end()
	require.Equal(t, ExitOK, code)

	c.inside(func(ctx context.Context, a *App) {
		rows, err := a.store.Parking().List(ctx, parking.Filter{States: []parking.State{parking.Waiting}})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, a.bindings[0].engine.Scope, baseScope(rows[0].Scope))
		require.Contains(t, rows[0].Scope, idempotency.ShardScope("", ""))
	})
	require.Contains(t, c.with("KEYS=database").fails(ExitRefused, "run"), "1 messages wait in scope")
}
