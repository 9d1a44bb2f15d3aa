package counters

import (
	"context"
	"embed"
	"io/fs"
	"strings"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/tally"
)

// Topics that the plugin listens to.
const (
	TopicAdd       = "counters.add"
	TopicCompleted = "payments.completed"
)

const guarantee = `Each message is counted exactly once for its key: event, total and key commit together. A total is the sum of its events at every commit. ` +
	`Counters only grow; a bad delta or an overflow becomes a dead letter and changes nothing. ` +
	`Not promised: the order of events of different messages.`

//go:embed migrations
var embedded embed.FS

// Plugin returns the plugin "counters" with its bindings "counters" (payments.completed) and "counters-add" (counters.add).
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name:       "counters",
		Migrations: migrations(),
		Guarantee:  guarantee,
		Open: handlers.Open(func(cfg Config, b *handlers.Bindings) error {
			b.On(TopicCompleted, handlers.JSON(perPayment(cfg.PerPayment)))
			b.On(TopicAdd, handlers.JSON(add), handlers.Named("counters-add"))
			return nil
		}),
	}
}

func migrations() fs.FS {
	files, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}

// add handles counters.add.
func add(_ context.Context, tx handlers.Tx, msg tally.Request) (any, error) {
	name, delta, err := msg.Check()
	if err != nil {
		return nil, err
	}
	return count(tx, []string{name}, delta), nil
}

// perPayment makes the handler of payments.completed.
func perPayment(patterns []string) func(context.Context, handlers.Tx, tally.Payment) (any, error) {
	return func(_ context.Context, tx handlers.Tx, p tally.Payment) (any, error) {
		names, err := p.Names(patterns) // sorted, so rivals take the counters in one order
		if err != nil {
			return nil, err
		}
		return count(tx, names, 1), nil
	}
}

// count queues the events and the totals of distinct, sorted names.
func count(tx handlers.Tx, names []string, delta int64) Added {
	added := Added{Counters: names, Delta: delta}
	if len(names) == 0 {
		return added
	}
	want := int64(len(names))
	var events []any
	for _, name := range names {
		events = append(events, tx.Scope(), tx.Key(), name, delta)
	}
	tx.Defer(func(rows int64) error {
		if rows == want {
			return nil
		}
		return handlers.Permanent("counter-event-exists", "this key was counted before it expired from the key store")
	}, handlers.InsertNew(tx, `INSERT INTO counter_events (scope, idempotency_key, counter, delta) VALUES `+rowsOf("(?, ?, ?, ?)", len(names)),
		"scope", "idempotency_key", "counter"), events...)
	raise(tx, names, delta)
	return added
}

// raise queues the totals.
func raise(tx handlers.Tx, names []string, delta int64) {
	check := func(rows int64) error {
		if rows == int64(len(names)) {
			return nil
		}
		return handlers.Permanent("counter-overflow", "the total would pass 9223372036854775807")
	}
	if tx.DriverName() == "mysql" {
		raiseExisting(tx, names, delta, check)
		return
	}
	var totals []any
	for _, name := range names {
		totals = append(totals, name, delta)
	}
	tx.Defer(check, tx.Rebind(`INSERT INTO counters (name, total) VALUES `+rowsOf("(?, ?)", len(names))+
		` ON CONFLICT (name) DO UPDATE SET total = counters.total + excluded.total
		WHERE counters.total <= 9223372036854775807 - excluded.total`), totals...)
}

// raiseExisting is for a database whose upsert has no condition: the counters come first, at zero where they are new.
func raiseExisting(tx handlers.Tx, names []string, delta int64, check func(rows int64) error) {
	var all []any
	for _, name := range names {
		all = append(all, name)
	}
	tx.Defer(nil, handlers.Ensure(tx, `INSERT INTO counters (name, total) VALUES `+rowsOf("(?, 0)", len(names)), "name"), all...)
	tx.Defer(check, tx.Rebind(`UPDATE counters SET total = total + ? WHERE total <= 9223372036854775807 - ? AND name IN (`+rowsOf("?", len(names))+`)`),
		append([]any{delta, delta}, all...)...)
}

func rowsOf(row string, n int) string { return strings.TrimSuffix(strings.Repeat(row+", ", n), ", ") }
