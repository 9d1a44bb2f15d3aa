package app

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/config"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

var update = flag.Bool("update", false, "write the generated files")

// docs/guarantees.md says what "oncemill guarantees" says, for every broker and database that is linked in. It is made of what the opened
// adapters say of themselves, so this test needs all servers.
func TestGuaranteesAreDocumented(t *testing.T) {
	t.Parallel()
	documented(t, "guarantees.md", guaranteesPage(t))
}

// documented checks that a file in docs has this text, which the program makes, or with -update writes it.
func documented(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("..", "docs", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, text, string(content), "run: go test ./app -run %s -update", t.Name())
}

// configured is an adapter with its defaults and the least that it needs.
type configured struct {
	name     string
	delivery broker.Capabilities
	keys     keystore.Capabilities
}

func openedBrokers(t *testing.T) []configured {
	topic := testenv.Name(t, "guarantee")
	settings := map[string][]string{
		"embedded": nil,
		"rabbitmq": {"BROKERS__RABBITMQ__URL=" + testenv.RabbitMQ(t).URL},
		"kafka":    {"BROKERS__KAFKA__BROKERS=" + strings.Join(testenv.Kafka(t), ",")},
		"nats":     {"BROKERS__NATS__URL=" + testenv.NATS(t)},
		"sql":      {"BROKERS__SQL__DSN=" + testenv.Postgres(t).DSN},
		"sqs":      {"BROKERS__SQS__ENDPOINT=" + testenv.SQS(t).Endpoint, "BROKERS__SQS__REGION=eu-central-1"},
	}
	var all []configured
	for _, f := range Builtin().Brokers {
		env, known := settings[f.Name]
		require.True(t, known, "broker %s is new: say here how to open it", f.Name)
		a := newConsole(t, Builtin(), append(env, "BROKER="+f.Name)...).app()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		require.NoError(t, a.openBroker(ctx))
		if f.Name == "kafka" { // it says nothing about topics that it has not seen
			require.NoError(t, a.broker.Declare(ctx, topic, nil))
		}
		caps := a.broker.Capabilities()
		for i, caveat := range caps.Caveats {
			caps.Caveats[i] = strings.ReplaceAll(caveat, topic, "TOPIC")
		}
		require.Equal(t, f.Capabilities.Ordering, caps.Ordering, "what the factory of %s says", f.Name)
		require.Equal(t, f.Capabilities.OrderedBatch, caps.OrderedBatch, "what the factory of %s says", f.Name)
		require.Equal(t, f.Capabilities.DeliveryCount, caps.DeliveryCount, "what the factory of %s says", f.Name)
		all = append(all, configured{name: f.Name, delivery: caps})
		cancel()
		require.NoError(t, a.Close())
	}
	return all
}

func openedStores(t *testing.T) []configured {
	settings := map[string][]string{
		"sqlite":   nil,
		"postgres": {"DATABASES__POSTGRES__DSN=" + testenv.Postgres(t).DSN},
		"mysql":    {"DATABASES__MYSQL__DSN=" + testenv.MySQL(t).DSN},
	}
	var all []configured
	for _, f := range Builtin().Stores {
		env, known := settings[f.Name]
		require.True(t, known, "database %s is new: say here how to open it", f.Name)
		newConsole(t, Builtin(), append(env, "DATABASE="+f.Name)...).inside(func(_ context.Context, a *App) {
			caps := a.store.Keys().Capabilities()
			require.Equal(t, f.Capabilities.Transactional, caps.Transactional, "what the factory of %s says", f.Name)
			require.Equal(t, f.Capabilities.Writers, caps.Writers, "what the factory of %s says", f.Name)
			all = append(all, configured{name: f.Name, keys: caps})
		})
	}
	return all
}

// page is a document in the making.
type page struct{ strings.Builder }

func (p *page) say(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) row(cells ...string) { p.say("| %s |", strings.Join(cells, " | ")) }

func (p *page) head(cells ...string) {
	p.row(cells...)
	p.say("|%s", strings.Repeat("---|", len(cells)))
}

func guaranteesPage(t *testing.T) string {
	t.Helper()
	brokers, stores := openedBrokers(t), openedStores(t)
	p := &page{}
	p.say("# Guarantees\n")
	p.say("Generated from what the adapters and plugins say of themselves; do not edit. `oncemill guarantees` prints the same for a running configuration, binding by")
	p.say("binding, with its reasons and with what could break it, and `oncemill run` refuses to start what cannot hold.\n")
	p.say("Values are those of default configurations, on servers that run on one machine each.\n")
	p.matrix()
	p.transactional(brokers, stores)
	p.externals()
	p.inBrokers(brokers)
	p.elsewhere(t)
	p.brokers(brokers)
	p.stores(stores)
	p.plugins()
	p.keySources()
	p.reasons(t)
	return p.String()
}

// matrix is what "oncemill guarantees --matrix" prints, with choices that are refused alike in one line.
func (p *page) matrix() {
	p.say("## What goes together\n")
	p.say("`oncemill guarantees --matrix` prints this for every single choice; `--json` for machines.\n")
	p.head("broker", "database", "keys", "transactional handlers", "those that need order", "external handlers", "transforms")
	type line struct{ broker, database, keys string }
	refused := map[line][]string{}
	for choice := range slices.Chunk(Matrix(Builtin()), len(kinds())) {
		one := line{"`" + choice[0].Broker + "`", "`" + choice[0].Database + "`", "`" + choice[0].Keys + "`"}
		cells := []string{one.broker, one.database, one.keys}
		offered := false
		for _, c := range choice {
			offered = offered || c.Offered()
			cells = append(cells, or(strings.Join(c.Refused, "; "), "yes"))
		}
		if offered {
			p.row(cells...)
			continue
		}
		refused[one] = choice[0].Refused
	}
	var reasons []string
	for _, why := range refused {
		for _, single := range why {
			if text := "- " + single + "."; !slices.Contains(reasons, text) {
				reasons = append(reasons, text)
			}
		}
	}
	slices.Sort(reasons)
	if len(reasons) > 0 {
		p.say("\nAll other choices are refused:\n\n%s", strings.Join(reasons, "\n"))
	}
	p.say("")
}

func (p *page) transactional(brokers, stores []configured) {
	p.say("## Transactional handlers\n")
	p.say("The rows show what holds for a handler that does its work in its transaction. \"Kept\" is how long a key is kept where nobody configures")
	p.say("it: %s, or as long as the broker may deliver a message again.\n", config.Duration(defaultRetention))
	p.head("broker", "database", "promise", "kept", "unless")
	for _, b := range brokers {
		for _, s := range stores {
			g := ground{broker: b.name, database: s.name, delivery: b.delivery, keys: s.keys}
			one := g.promise(binding{name: "handler", missing: envelope.MissingReject, engine: idempotency.Binding{Retention: defaultRetention}})
			unless := slices.DeleteFunc(slices.Clone(one.Breaks), func(text string) bool {
				return slices.ContainsFunc(slices.Concat(b.delivery.Caveats, s.keys.Caveats), func(c string) bool { return strings.HasPrefix(c, text) })
			})
			p.row("`"+b.name+"`", "`"+s.name+"`", or(strings.Join(one.Refused, "; "), one.Holds), one.Retention, strings.Join(unless, "; "))
		}
	}
	p.say("\nWhat weakens a broker or a database further stands below.\n")
}

func (p *page) externals() {
	p.say("## External handlers\n")
	p.say("An outside effect cannot be rolled back. `bindings.X.unknown_outcome` says what becomes of a call whose outcome is not known; the rows and messages that follow")
	p.say("from a call commit exactly once, with the key, on every broker and database.\n")
	p.head("unknown_outcome", "promise", "unless")
	for _, policy := range []idempotency.UnknownPolicy{idempotency.UnknownPark, idempotency.UnknownRetry, idempotency.UnknownProbe} {
		one := Promise{}
		one.external(binding{engine: idempotency.Binding{External: &idempotency.External{Unknown: policy}}})
		p.row("`"+string(policy)+"`", one.Holds, or(strings.Join(one.Breaks, "; "), "-"))
	}
	p.say("")
}

func (p *page) inBrokers(brokers []configured) {
	p.say("## Keys in the broker's transactions\n")
	p.say("A handler that turns messages into messages (`Bindings.Transform`) and nothing else can have its keys in the transactions of its broker. Parked")
	p.say("messages and dead letters stay in the database. Other kinds of handlers, and other brokers, are refused at start, with the reason.\n")
	for _, b := range brokers {
		if b.delivery.Transactions == nil {
			continue
		}
		g := ground{broker: b.name, database: "the database", delivery: broker.Capabilities{Transactions: b.delivery.Transactions}}
		transform := func(context.Context, handlers.Emitter, *message.Message) error { return nil }
		one := g.promise(binding{name: "X", kept: b.name, transform: transform, missing: envelope.MissingReject, engine: idempotency.Binding{Retention: defaultRetention}})
		p.say("`--keys %s`: %s,\n", b.name, one.Holds)
		for _, line := range one.Because {
			p.say("- because %s", line)
		}
		for _, line := range one.Breaks {
			p.say("- unless: %s", line)
		}
		p.say("")
		for _, kind := range []binding{
			{name: "X", kept: b.name},
			{name: "X", kept: b.name, engine: idempotency.Binding{External: &idempotency.External{}}},
		} {
			refused := g.promise(kind)
			p.say("- refused for an %s handler: %s", or(map[string]string{"transactional": "SQL"}[refused.Kind], refused.Kind), refused.Refused[0])
		}
		p.say("")
	}
}

// elsewhere says what keys mean that are kept besides the database.
func (p *page) elsewhere(t *testing.T) {
	p.say("## Keys elsewhere\n")
	p.say("With `keys: redis` or `keys: dynamodb`, for all bindings or for one, the database stays the truth: every effect's transaction inserts its key there. These are")
	p.say("the values of a Redis server with an append-only file, `appendfsync everysec` and `maxmemory-policy noeviction`, and of a table of DynamoDB in one region.\n")
	p.head("keys", "handler", "because", "unless")
	_, dynamodb := withDynamoDB(t, Set{}, testenv.Name(t, "keys"))
	settings := map[string][]string{
		"redis":    {"DATABASES__REDIS__URL=" + testenv.Redis(t)},
		"dynamodb": append(dynamodb, "DATABASES__DYNAMODB__CREATE=true"),
	}
	for _, f := range Builtin().Keys {
		env, known := settings[f.Name]
		require.True(t, known, "keys %s is new: say here how to open it", f.Name)
		newConsole(t, Builtin(), append(env, "KEYS="+f.Name)...).inside(func(ctx context.Context, a *App) {
			require.NoError(t, a.openKeys(ctx))
			g := ground{database: "the database", far: map[string]keystore.Capabilities{f.Name: a.far[f.Name].Capabilities()}}
			for _, external := range []*idempotency.External{nil, {Unknown: idempotency.UnknownPark}} {
				one, kind := Promise{}, "transactional"
				if external != nil {
					kind = "external"
				}
				one.elsewhere(binding{kept: f.Name, apart: true, engine: idempotency.Binding{External: external}}, g)
				require.Empty(t, one.Refused)
				p.row("`"+f.Name+"`", kind, strings.Join(one.Because, "; "), strings.Join(one.Breaks, "; "))
			}
		})
	}
	p.say("\nA Redis server that evicts keys in progress (`maxmemory-policy allkeys-*`) or has no append-only file is refused for external handlers whose `unknown_outcome`")
	p.say("is `park` or `probe`, and so is a global table of DynamoDB with replicas in several regions, of which the last writer wins; unless `databases.redis.allow_loss`, or")
	p.say("`databases.dynamodb.allow_loss`, is set: there a call that is under way could be made twice. What a lost")
	p.say("lease means: a call under way is cut off at its next renewal, and counts as one of unknown outcome; a copy that comes before that is called for, too;")
	p.say("a process that died during its call leaves nobody who knows of it. All calls of a key have one downstream key, and its rows commit once.\n")
}

func (p *page) brokers(brokers []configured) {
	p.say("## Brokers\n")
	p.head("broker", "longest redelivery", "because", "order of an ordering key, with `ordered: true`", "own window for double sends")
	for _, b := range brokers {
		c := b.delivery
		longest, order, own := "no bound", "not over replicas", "none"
		if c.LongestRedelivery > 0 {
			longest = config.Duration(c.LongestRedelivery).String()
		}
		if c.Ordering == broker.OrderByKey {
			order = "over all replicas"
		}
		if c.DedupeWindow > 0 {
			own = config.Duration(c.DedupeWindow).String()
		}
		p.row("`"+b.name+"`", longest, c.RedeliveryReason, order, own)
	}
	p.say("")
	for _, b := range brokers {
		p.caveats(b.name, b.delivery.Caveats)
	}
	p.say("")
}

func (p *page) caveats(name string, caveats []string) {
	for _, caveat := range caveats {
		p.say("- `%s`: %s.", name, strings.TrimSuffix(caveat, "."))
	}
}

func (p *page) stores(stores []configured) {
	p.say("## Databases\n")
	p.head("database", "key and effect in one transaction", "survives a crash of the machine", "writers at once")
	for _, s := range stores {
		writers := "no bound"
		if s.keys.Writers > 0 {
			writers = fmt.Sprint(s.keys.Writers)
		}
		p.row("`"+s.name+"`", yes(s.keys.Transactional), yes(s.keys.Durable), writers)
	}
	p.say("")
	for _, s := range stores {
		p.caveats(s.name, s.keys.Caveats)
	}
	p.say("")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (p *page) plugins() {
	p.say("## Built-in handlers\n")
	p.head("binding", "topic", "kind", "keys are kept for at least")
	var texts []string
	for _, plugin := range Builtin().Plugins {
		bindings := handlers.NewBindings(plugin.Name)
		if err := plugin.Open(func(any) error { return nil }, bindings); err != nil {
			panic(err) // defaults are good
		}
		for _, b := range bindings.List() {
			kind := "transactional"
			if b.External != nil {
				kind = "external"
			}
			p.row("`"+b.Name+"`", "`"+b.Topic+"`", kind, config.Duration(or(plugin.Retention, defaultRetention)).String())
		}
		texts = append(texts, fmt.Sprintf("- **%s**: %s", plugin.Name, strings.Join(strings.Fields(plugin.Guarantee), " ")))
	}
	p.say("\n%s\n", strings.Join(texts, "\n"))
}

func (p *page) keySources() {
	p.say("## Keys\n")
	p.say("`bindings.X.key` says where the key comes from. Some sources weaken the promise:\n")
	for _, spec := range []string{"position", "kafka-record-key", "amqp-message-id", "nats-msg-id", "sqs-deduplication-id"} {
		p.say("- `%s`: %s", spec, envelope.KeySourceCaveat(spec))
	}
	p.say("\n`bindings.X.missing_key` says what becomes of a message without a key:\n")
	p.say("- `reject`: it becomes a dead letter.")
	for _, missing := range []envelope.MissingKey{envelope.MissingDerive, envelope.MissingPass} {
		one := Promise{}
		one.keys(binding{missing: missing})
		p.say("- `%s`: %s.", missing, strings.Join(one.Breaks, "; "))
	}
	p.say("")
}
