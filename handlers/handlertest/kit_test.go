package handlertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/payments"
)

type order struct {
	ID string `json:"id"`
}

// placed is a message for shop.
var placed = handlertest.Message{To: "orders.placed", Key: "k", Payload: order{"1"}}

// shop is a plugin of one transactional handler.
func shop(handle func(ctx context.Context, tx handlers.Tx, o order) (any, error)) handlers.Plugin {
	return plugin(func(b *handlers.Bindings) { b.On("orders.placed", handlers.JSON(handle)) })
}

func plugin(bind func(b *handlers.Bindings)) handlers.Plugin {
	migrations, err := fs.Sub(os.DirFS("testdata"), "migrations")
	if err != nil {
		panic(err)
	}
	return handlers.Plugin{Name: "shop", Migrations: migrations, Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
		bind(b)
		return nil
	})}
}

// take is a right handler: two statements and a message.
func take(ctx context.Context, tx handlers.Tx, o order) (any, error) {
	if o.ID == "" {
		return nil, handlers.Permanent("order-without-id", "the order has no id")
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO seen (id) VALUES (?)`, o.ID); err != nil {
		return nil, err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO totals (name, n) VALUES ('orders', 1) ON CONFLICT (name) DO UPDATE SET n = n + 1`)
	if err != nil {
		return nil, err
	}
	return "taken", tx.Publish(ctx, "orders.taken", o)
}

func once(k *handlertest.Kit) {
	k.WantRow(`SELECT count(*) FROM seen`, 1)
	k.WantRow(`SELECT n FROM totals`, 1)
	k.WantPublished("orders.taken", 1)
	k.WantDead()
	k.WantQuiet()
}

func TestDeliver(t *testing.T) {
	k := handlertest.New(t, shop(take), nil)
	require.Equal(t, handlertest.Completed, k.Deliver("orders.placed", "k", order{"1"}))
	require.Equal(t, handlertest.Duplicate, k.Deliver("shop", "k", order{"1"}), "by the binding's name")
	once(k)
	require.JSONEq(t, `{"id": "1"}`, string(k.Published("orders.taken")[0].Payload))
	require.Equal(t, handlertest.Dead, k.Deliver("orders.placed", "k", order{"2"}))
	require.Equal(t, handlertest.Dead, k.Deliver("orders.placed", "empty", order{}))
	require.Equal(t, handlertest.Rejected, k.Deliver("orders.placed", "empty", order{}))
	require.Equal(t, handlertest.Dead, k.Deliver("orders.placed", "text", []byte("no JSON")))
	k.WantDead("payload-mismatch", "order-without-id", "payload-not-json")
	once := handlertest.New(t, shop(take), nil)
	once.DeliverTwice("orders.placed", "k", order{"1"})
	rivals := handlertest.New(t, shop(take), nil)
	rivals.DeliverToRivals("orders.placed", "k", order{"1"})
	rivals.WantRow(`SELECT count(*), max(id) FROM seen`, 1, "1")
	rivals.WantQuiet()
}

// Retries and retention follow the clock that the test moves.
func TestAdvance(t *testing.T) {
	failures := 2
	k := handlertest.New(t, shop(func(ctx context.Context, tx handlers.Tx, o order) (any, error) {
		result, err := take(ctx, tx, o)
		if failures--; failures >= 0 {
			err = errors.New("not now")
		}
		return result, err
	}), nil)
	require.Equal(t, handlertest.Parked, k.Deliver("orders.placed", "k", order{"1"}))
	require.Equal(t, handlertest.Waiting, k.Deliver("orders.placed", "k", order{"1"}))
	k.WantRow(`SELECT count(*) FROM seen`, 0)
	k.WantPublished("orders.taken", 0)
	k.Advance(time.Minute)
	k.WantRow(`SELECT count(*) FROM seen`, 0)
	k.Advance(time.Minute)
	once(k)
	require.Equal(t, handlertest.Duplicate, k.Deliver("orders.placed", "k", order{"1"}))
	k.Advance(8 * 24 * time.Hour)
	require.Equal(t, handlertest.Completed, k.Deliver("orders.placed", "k", order{"1"}), "the key is past its retention")
}

func TestFailEverywhere(t *testing.T) {
	k := handlertest.New(t, shop(take), nil)
	steps := 0
	k.FailEverywhere("orders.placed", "k", order{"1"}, func(k *handlertest.Kit) {
		steps++
		once(k)
	})
	require.GreaterOrEqual(t, steps, 8)
	k.WantRow(`SELECT count(*) FROM seen`, 0)
}

func TestExternal(t *testing.T) {
	calls := map[string]int{}
	outcome := error(nil)
	p := plugin(func(b *handlers.Bindings) {
		b.OnExternal("orders.placed", handlers.External{
			Call: func(_ context.Context, _ *message.Message, key handlers.Key) (any, error) {
				calls[key.String()]++
				return "sent", outcome
			},
			Record: func(ctx context.Context, tx handlers.Tx, msg *message.Message, result json.RawMessage) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO seen (id) VALUES (?)`, string(result))
				return err
			},
		})
	})
	k := handlertest.New(t, p, nil)
	k.DeliverTwice("orders.placed", "k", order{"1"})
	k.WantRow(`SELECT id FROM seen`, `"sent"`)
	require.Len(t, calls, 1)

	outcome = handlers.Unknown(errors.New("timeout"))
	require.Equal(t, handlertest.InDoubt, k.Deliver("orders.placed", "other", order{"2"}))
	retries := handlertest.New(t, p, nil, handlertest.WithUnknownOutcome(handlers.UnknownRetry))
	require.Equal(t, handlertest.Parked, retries.Deliver("orders.placed", "k", order{"1"}))
	outcome = nil
	retries.FailEverywhere("orders.placed", "more", order{"1"}, func(k *handlertest.Kit) {
		k.Advance(time.Hour)
		k.WantRow(`SELECT count(*) FROM seen`, 2)
		k.WantQuiet()
	})
}

func TestExternalWithoutAResult(t *testing.T) {
	k := handlertest.New(t, plugin(func(b *handlers.Bindings) {
		b.OnExternal("orders.placed", handlers.External{
			Call: func(context.Context, *message.Message, handlers.Key) (any, error) { return nil, nil },
		})
	}), nil)
	k.DeliverTwice("orders.placed", "k", order{"1"})
	k.WantQuiet()
}

func TestConfig(t *testing.T) {
	for name, config := range map[string]any{"yaml": "equity_prefix: eigen/", "value": payments.Config{EquityPrefix: "eigen/"}} {
		t.Run(name, func(t *testing.T) {
			k := handlertest.New(t, payments.Plugin(), config)
			k.Deliver("accounts.opened", "a", payments.Opened{AccountID: "alice", Currency: "EUR", OpeningBalance: "10.00"})
			k.WantDead()
			k.WantRow(`SELECT count(*) FROM accounts WHERE id LIKE 'eigen/%'`, 1)
		})
	}
}

func TestTransform(t *testing.T) {
	k := handlertest.New(t, plugin(func(b *handlers.Bindings) {
		b.Transform("orders.placed", handlers.JSONTransform(func(ctx context.Context, out handlers.Emitter, o order) error {
			return out.Publish(ctx, "orders.copied", o)
		}))
	}), nil)
	k.FailEverywhere("orders.placed", "k", order{"1"}, func(k *handlertest.Kit) {
		k.WantPublished("orders.copied", 1)
		k.WantQuiet()
	})
}
