// Command rabbitmq is a plain Watermill router on watermill-amqp's own subscriber. Of Oncemill it has the middleware and the
// tables alone. An order counts once, however often it is sent and whatever is killed.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

//go:embed migrations
var embedded embed.FS

func main() {
	url := flag.String("rabbitmq", "amqp://guest:guest@127.0.0.1:16672/", "RabbitMQ")
	dsn := flag.String("postgres", "postgres://oncemill@127.0.0.1:15432/oncemill?sslmode=disable", "PostgreSQL")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *url, *dsn); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, dsn string) error {
	db, err := pgstore.Open(ctx, pgstore.Config{DSN: dsn}, store.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	tables, err := fs.Sub(embedded, "migrations")
	if err != nil {
		return err
	}
	if err := db.Migrate(ctx, []store.MigrationSet{{Name: "shop", Files: tables}}); err != nil {
		return err
	}
	once, err := idempotency.NewRouter(idempotency.Config{
		Binding: idempotency.Binding{Scope: "shop"}, Keys: db.Keys(), Parking: db.Parking(),
	})
	if err != nil {
		return err
	}
	// The feeder runs what failed, when its next attempt is due.
	feeder, err := parking.NewFeeder(parking.FeederConfig{Store: db.Parking(), Scopes: []string{"shop/count"}, Run: once.RunParked})
	if err != nil {
		return err
	}

	logger := watermill.NewSlogLogger(slog.Default())
	queues := amqp.NewDurablePubSubConfig(url, amqp.GenerateQueueNameTopicNameWithSuffix("shop"))
	subscriber, err := amqp.NewSubscriber(queues, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(once.Middleware)
	router.AddConsumerHandler("count", "orders", subscriber, count)

	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return router.Run(context.WithoutCancel(ctx)) })
	running.Go(func() error { return feeder.Run(ctx) })
	running.Go(func() error {
		<-ctx.Done()
		// What runs is finished first: a router that closes cancels its handlers.
		return errors.Join(once.Stop(context.WithoutCancel(ctx)), router.Close())
	})
	return running.Wait()
}

type order struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// count adds an order to its customer's total. It contains no check for duplicates.
func count(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil || o.Cents <= 0 {
		return handlers.Permanent("order-invalid", "an order is JSON with a customer and a positive amount")
	}
	tx, ok := idempotency.TxFrom(msg.Context())
	if !ok {
		return errors.New("the middleware is missing")
	}
	_, err := tx.ExecContext(msg.Context(), `INSERT INTO totals (customer, cents) VALUES ($1, $2)
		ON CONFLICT (customer) DO UPDATE SET cents = totals.cents + excluded.cents`, o.Customer, o.Cents)
	if err != nil {
		return fmt.Errorf("add to the total: %w", err)
	}
	return nil
}
