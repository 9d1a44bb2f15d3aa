package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing/fstest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
)

type payment struct {
	ID string `json:"payment_id"`
}

// flag handles one payment. It does everything through tx.
func flag(ctx context.Context, tx handlers.Tx, p payment) (any, error) {
	if p.ID == "" {
		return nil, handlers.Permanent("payment_id", "is missing") // a dead letter at once
	}
	if _, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO risk_seen (payment_id) VALUES (?)`), p.ID); err != nil {
		return nil, err // rolled back, tried again later
	}
	return "flagged", tx.Publish(ctx, "risk.flagged", p) // leaves when all of it has committed
}

// A plugin with its table, its settings and one transactional handler for JSON.
func ExamplePlugin() {
	type settings struct{ Topic string }
	plugin := handlers.Plugin{
		Name: "risk", Publishes: []string{"risk.flagged"},
		Migrations: fstest.MapFS{"sqlite/00001_init.sql": { // in a plugin of yours embed.FS
			Data: []byte("-- +goose Up\nCREATE TABLE risk_seen (payment_id TEXT PRIMARY KEY);\n"),
		}},
		Open: handlers.Open(func(s settings, b *handlers.Bindings) error {
			b.On(s.Topic, handlers.JSON(flag))
			return nil
		}),
	}

	// What the application does with it at start; plugins.risk.config is decoded into the settings.
	bindings := handlers.NewBindings(plugin.Name)
	err := plugin.Open(func(into any) error { return json.Unmarshal([]byte(`{"Topic": "payments.completed"}`), into) }, bindings)
	for _, b := range bindings.List() {
		fmt.Println(b.Name, b.Topic, err)
	}
	// Output: risk payments.completed <nil>
}

// provider stands for a payment provider that removes duplicates by a key of the caller's.
type provider struct{}

var errTimeout = errors.New("no answer in time")

func (provider) capture(_ context.Context, key string) (receipt string, err error) {
	if key == "" {
		return "", errTimeout
	}
	return "captured", nil
}

// An effect that cannot be rolled back: it is called outside any transaction, and what follows from it is recorded in one.
func ExampleExternal() {
	capturing := handlers.External{
		Call: func(ctx context.Context, _ *message.Message, key handlers.Key) (any, error) {
			receipt, err := provider{}.capture(ctx, key.String())
			if errors.Is(err, errTimeout) {
				return nil, handlers.Unknown(err) // it may have happened
			}
			return receipt, err
		},
		Record: func(ctx context.Context, tx handlers.Tx, _ *message.Message, result json.RawMessage) error {
			return tx.Publish(ctx, "captures.done", result)
		},
		Unknown: handlers.UnknownRetry, // the provider removes the copy by its key
		Window:  24 * time.Hour,        // for so long
	}

	// What the engine does, under a lease. The key is the same on every attempt.
	for range 2 {
		key := handlers.NewKey("shop/captures", "order-17")
		receipt, err := capturing.Call(context.Background(), nil, key)
		fmt.Println(key, receipt, err)
	}
	// Output:
	// 56952125-775c-8ff6-8038-0a12ef5f356a captured <nil>
	// 56952125-775c-8ff6-8038-0a12ef5f356a captured <nil>
}
