package app_test

import (
	"context"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/handlers"
)

// The main of a program of your own. It has the whole command line (run, publish, keys, dlq, …), and only what it names is linked in: no Kafka, no
// Amazon SDK, no MySQL driver.
func ExampleMain() {
	shop := handlers.Plugin{
		Name: "shop",
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.On("orders.placed", func(context.Context, handlers.Tx, *message.Message) (any, error) { return "seen", nil })
			return nil
		}),
	}
	os.Exit(app.Main(app.Set{
		Service: "shop",
		Brokers: []broker.Factory{rabbitbroker.Factory()},
		Stores:  []store.Factory{sqlitestore.Factory(), pgstore.Factory()},
		Plugins: []handlers.Plugin{shop},
	}))
}
