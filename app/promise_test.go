package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// solid is a ground on which everything holds.
func solid() ground {
	return ground{
		broker: "rabbit", database: "postgres",
		delivery: broker.Capabilities{Ordering: broker.OrderByKey, LongestRedelivery: 10 * 24 * time.Hour, RedeliveryReason: "its max_age", DeliveryCount: true, Durable: true},
		keys:     keystore.Capabilities{Transactional: true, Durable: true},
	}
}

// plain is a binding with nothing configured.
func plain() binding {
	return binding{name: "tally", topic: tallyTopic, missing: envelope.MissingReject, engine: idempotency.Binding{Scope: tallyScope, Retention: 14 * 24 * time.Hour}}
}

// inKafka makes of a binding a transform with its keys in Kafka.
func inKafka(b *binding, g *ground) {
	b.kept, b.transform = "kafka", func(context.Context, handlers.Emitter, *message.Message) error { return nil }
	g.broker, g.delivery.Transactions = "kafka", []string{"A second sending in another partition is not recognised."}
}

// forgetful is a store of keys elsewhere that loses leases in ordinary operation.
func forgetful() map[string]keystore.Capabilities {
	return map[string]keystore.Capabilities{"redis": {Forgets: "it evicts everything"}}
}

func TestPromises(t *testing.T) {
	t.Parallel()
	external := func(b *binding, policy idempotency.UnknownPolicy) {
		b.engine.External = &idempotency.External{Unknown: policy, Window: 24 * time.Hour}
	}
	for _, one := range []struct {
		name    string
		change  func(b *binding, g *ground)
		holds   string
		because string
		unless  string
		refused string
		kept    time.Duration
	}{
		{name: "transactional", holds: "exactly once", because: "one postgres transaction", unless: "outside its transaction"},
		{name: "keys apart from the effect", change: func(_ *binding, g *ground) { g.keys.Transactional = false }, refused: "cannot commit keys with the effect"},
		{name: "database that forgets", change: func(_ *binding, g *ground) { g.keys.Durable = false }, unless: "a crash of the machine"},
		{name: "external, parked", change: func(b *binding, _ *ground) { external(b, idempotency.UnknownPark) }, holds: "at most once unless a person decides"},
		{name: "external, retried", change: func(b *binding, _ *ground) { external(b, idempotency.UnknownRetry) }, holds: "under one key", unless: "does not deduplicate by the key for at least 1d"},
		{name: "external, probed", change: func(b *binding, _ *ground) { external(b, idempotency.UnknownProbe) }, holds: "looked up at the provider", unless: "answers the probe before"},
		{name: "external needs no shared transaction", change: func(b *binding, g *ground) {
			external(b, idempotency.UnknownPark)
			g.keys.Transactional = false
		}, holds: "at most once"},

		{name: "hints elsewhere", change: func(b *binding, g *ground) { b.kept, b.apart, g.far = "redis", true, forgetful() },
			holds: "exactly once", because: "costs speed, never the effect", unless: "keys epoch --raise"},
		{name: "F048 leases that are forgotten, parked", change: func(b *binding, g *ground) {
			external(b, idempotency.UnknownPark)
			b.kept, b.apart, g.far = "redis", true, forgetful()
		}, because: "they commit once", refused: "evicts everything, and so a call could be made twice although unknown_outcome is park"},
		{name: "F048 leases that are forgotten, probed", change: func(b *binding, g *ground) {
			external(b, idempotency.UnknownProbe)
			b.kept, b.apart, g.far = "redis", true, forgetful()
		}, refused: "databases.redis.allow_loss"},
		{name: "F048 leases that are forgotten, retried", change: func(b *binding, g *ground) {
			external(b, idempotency.UnknownRetry)
			b.kept, b.apart, g.far = "redis", true, forgetful()
		}, holds: "under one key", unless: "evicts everything"},
		{name: "leases elsewhere that last", change: func(b *binding, g *ground) {
			external(b, idempotency.UnknownPark)
			b.kept, b.apart, g.far = "redis", true, map[string]keystore.Capabilities{"redis": {Caveats: []string{"One copy."}}}
		}, holds: "at most once", unless: "One copy"},

		{name: "F027 default retention is enough", because: "kept for 14d", kept: 14 * 24 * time.Hour},
		{name: "F027 default retention is raised", change: func(_ *binding, g *ground) { g.delivery.LongestRedelivery = 30 * 24 * time.Hour }, because: "kept for 30d", kept: 30 * 24 * time.Hour},
		{name: "F027 chosen retention is enough", change: func(b *binding, g *ground) { b.chosen, b.engine.Retention = true, 10*24*time.Hour }, because: "kept for 10d", kept: 10 * 24 * time.Hour},
		{name: "F027 chosen retention is too short", change: func(b *binding, g *ground) { b.chosen, b.engine.Retention = true, 24*time.Hour },
			refused: "retention 1d is shorter than the longest redelivery of rabbit, 10d (its max_age): set bindings.tally.retention", kept: 24 * time.Hour},
		{name: "F027 no bound", change: func(b *binding, g *ground) {
			g.delivery.LongestRedelivery, g.delivery.RedeliveryReason = 0, "it keeps a message until it is acked"
		}, unless: "a copy that rabbit delivers after 14d: it keeps a message until it is acked", kept: 14 * 24 * time.Hour},
		{name: "F027 no bound and no reason", change: func(b *binding, g *ground) {
			g.delivery.LongestRedelivery, g.delivery.RedeliveryReason = 0, ""
		}, unless: "it sets no bound to redeliveries"},

		{name: "keys in the broker", change: inKafka, holds: "seen exactly once by consumers that read committed messages only",
			because: "commit in one kafka transaction", unless: "another partition is not recognised", kept: 14 * 24 * time.Hour},
		{name: "keys in the broker for rows", change: func(b *binding, g *ground) { inKafka(b, g); b.transform = nil }, refused: "this handler writes to the database"},
		{name: "keys in the broker for an outside effect", change: func(b *binding, g *ground) {
			inKafka(b, g)
			b.transform = nil
			external(b, idempotency.UnknownPark)
		}, refused: "this handler has an outside effect"},
		{name: "keys in another broker", change: func(b *binding, g *ground) { inKafka(b, g); g.broker = "rabbit" }, refused: "needs broker kafka"},
		{name: "keys in a broker without transactions", change: func(b *binding, g *ground) { inKafka(b, g); g.delivery.Transactions = nil }, refused: "needs broker kafka"},
		{name: "a transform with its keys in the database", change: func(b *binding, g *ground) { inKafka(b, g); b.kept = inDatabase }, holds: "exactly once", because: "one postgres transaction"},

		{name: "order of one replica", because: "in which one replica receives them"},
		{name: "order over replicas", change: func(b *binding, _ *ground) { b.order = true }, because: "over all replicas"},
		{name: "order that the broker does not keep", change: func(b *binding, g *ground) { b.order, g.delivery.Ordering = true, broker.OrderNone }, refused: "order of ordering keys over replicas"},

		{name: "position as key", change: func(b *binding, _ *ground) { b.keySpec = "position" }, unless: "a producer's second sending is not"},
		{name: "keyless, passed", change: func(b *binding, _ *ground) { b.missing = envelope.MissingPass }, unless: "without deduplication"},
		{name: "keyless, passed, external", change: func(b *binding, _ *ground) {
			external(b, idempotency.UnknownPark)
			b.missing = envelope.MissingPass
		}, refused: "missing_key: pass"},
		{name: "keyless, derived", change: func(b *binding, _ *ground) { b.missing = envelope.MissingDerive }, unless: "equal payloads, count as one"},

		{name: "caveat of the broker", change: func(_ *binding, g *ground) { g.delivery.Caveats = []string{"One copy only."} }, unless: "One copy only"},
		{name: "caveat of the database", change: func(_ *binding, g *ground) { g.keys.Caveats = []string{"One writer."} }, unless: "One writer"},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			b, g := plain(), solid()
			if one.change != nil {
				one.change(&b, &g)
			}
			p := g.promise(b)
			require.Contains(t, p.Holds, one.holds)
			require.Contains(t, strings.Join(p.Because, "\n"), one.because)
			require.Contains(t, strings.Join(p.Breaks, "\n"), one.unless)
			if one.refused == "" {
				require.Empty(t, p.Refused)
				require.NoError(t, refusals([]Promise{p}))
			} else {
				require.Len(t, p.Refused, 1)
				require.Contains(t, p.Refused[0], one.refused)
				require.ErrorContains(t, refusals([]Promise{p}), "binding tally: ")
			}
			if one.kept > 0 {
				require.Equal(t, one.kept, p.kept)
			}
			require.Equal(t, 14*24*time.Hour, plain().engine.Retention, "a promise changes no binding")
		})
	}
}

func TestGuaranteesArePrinted(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin())
	text := c.ok("guarantees")
	require.Contains(t, text, "payments (transactional, topic payments.requested): the effect happens exactly once\n")
	require.Contains(t, text, "  because  key, rows, result and outgoing messages commit in one sqlite transaction\n")
	promises := decode[[]Promise](c, "guarantees")
	require.Len(t, promises, 9)
	require.Equal(t, "payments", promises[0].Binding)
	require.Equal(t, "30d", promises[0].Retention)
	require.NotEmpty(t, promises[0].Plugin)

	refusing := c.with("BROKERS__EMBEDDED__MAX_AGE=90d", "BINDINGS__PAYMENTS__RETENTION=60d")
	a := refusing.do("guarantees", "--json")
	require.Equal(t, ExitRefused, a.code)
	require.Contains(t, a.out, "is shorter than the longest redelivery of embedded, 90d")
	require.Contains(t, refusing.do("guarantees").out, "REFUSED")
}

// F027: a retention that somebody chose below the broker's longest redelivery is refused at start, one that nobody chose is raised.
func TestF027RetentionAgainstTheBroker(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BROKERS__EMBEDDED__MAX_AGE=20d")
	text := c.with("BINDINGS__TALLY__RETENTION=15d").fails(ExitRefused, "run")
	require.Contains(t, text, "retention 15d is shorter than the longest redelivery of embedded, 20d")

	c.start()
	c.publish(tallyTopic, "k", "{}")
	story := c.waitKey(tallyScope, "k", "completed")
	require.InDelta(t, 20*24, story.ExpiresAt.Sub(story.ProcessedAt).Hours(), 1, "7d by default, raised to what the broker may deliver again")
}

// F027: the dead copy of a completed message outlives the key's retention in the dead letters; the key stays as long, so that
// sending the copy back is refused and never runs a second time.
func TestF027ReplayAfterTheRetention(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BROKERS__EMBEDDED__MAX_AGE=1s", "BINDINGS__TALLY__RETENTION=2s",
		"BINDINGS__TALLY__RETRY__FIRST=100ms", "BINDINGS__TALLY__RETRY__MAX=100ms", "RETENTION__CLEAN_EVERY=100ms")
	run := c.start()
	for _, key := range []string{"with-copy", "without"} {
		c.publish(tallyTopic, key, `{"n":1}`)
		c.waitKey(tallyScope, key, "completed")
	}
	c.publish(tallyTopic, "with-copy", `{"n":2}`)
	id := c.waitDead("with-copy", "payload-mismatch")

	c.gone("without")
	require.NoError(t, run.counts("oncemill_cleaned_keys_total", `scope="oncemill/tally"`, 1))
	c.waitKey(tallyScope, "with-copy", "completed")
	require.Contains(t, c.fails(ExitRefused, "dlq", "redrive", itoa(id.ID)), "nothing was done")
	require.Equal(t, 1, c.effects("with-copy"))

	c.ok("dlq", "drop", itoa(id.ID))
	c.gone("with-copy")
}
