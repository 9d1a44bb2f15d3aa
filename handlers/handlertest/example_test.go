package handlertest_test

import (
	"context"
	"testing"
	"testing/fstest"
	"time"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
)

// A plugin's test. In yours it is a func TestSeats(t *testing.T) in a file of its own; nothing has to be installed.
func ExampleNew() {
	type seat struct{ ID string }
	seats := handlers.Plugin{
		Name: "seats", Publishes: []string{"seats.booked"},
		Migrations: fstest.MapFS{"sqlite/00001_init.sql": {Data: []byte("-- +goose Up\nCREATE TABLE seats (id TEXT PRIMARY KEY);\n")}},
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.On("seats.wanted", handlers.JSON(func(ctx context.Context, tx handlers.Tx, s seat) (any, error) {
				if _, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO seats (id) VALUES (?)`), s.ID); err != nil {
					return nil, err
				}
				return "booked", tx.Publish(ctx, "seats.booked", s)
			}))
			return nil
		}),
	}
	testSeats = func(t *testing.T) {
		k := handlertest.New(t, seats, nil)
		k.FailEverywhere("seats.wanted", "book-12a", seat{"12a"}, func(k *handlertest.Kit) {
			k.WantRow(`SELECT count(*) FROM seats`, 1)
			k.WantPublished("seats.booked", 1)
			k.WantDead()
		})
		k.DeliverTwice("seats.wanted", "book-12b", seat{"12b"})
		k.DeliverToRivals("seats.wanted", "book-12c", seat{"12c"})
		k.Advance(31 * 24 * time.Hour) // retries become due, keys end
	}
}

var testSeats func(t *testing.T)

// The example's own test passes.
func TestExampleNew(t *testing.T) {
	ExampleNew()
	testSeats(t)
}
