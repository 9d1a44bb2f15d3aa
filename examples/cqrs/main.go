// Command cqrs is Watermill's CQRS component on a plain router, with Oncemill's middleware, outbox and adapters. A command has one
// effect, its event leaves with that effect, and the handlers of an event group share one transaction. The broker is a flag.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

//go:embed migrations
var embedded embed.FS

func main() {
	rabbitmq := flag.String("rabbitmq", "amqp://guest:guest@127.0.0.1:16672/", "RabbitMQ, unless -kafka is given")
	kafka := flag.String("kafka", "", "Kafka's addresses")
	dsn := flag.String("postgres", "postgres://oncemill@127.0.0.1:15432/oncemill?sslmode=disable", "PostgreSQL")
	service := flag.String("service", "shop", "begins the names of topics, groups and scopes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	b, err := open(ctx, *rabbitmq, *kafka)
	if err == nil {
		err = errors.Join(run(ctx, b, *service, *dsn), b.Close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// open connects to the broker. The configurations hold the adapters' defaults already.
func open(ctx context.Context, rabbitmq, kafka string) (broker.Broker, error) {
	opts := broker.Options{Logger: slog.Default(), ClientName: "cqrs", MaxPayload: 1 << 20}
	if kafka == "" {
		return rabbitbroker.Factory().Open(ctx, func(config any) error {
			config.(*rabbitbroker.Config).URL = rabbitmq
			return nil
		}, opts)
	}
	return kafkabroker.Factory().Open(ctx, func(config any) error {
		config.(*kafkabroker.Config).Brokers = strings.Split(kafka, ",")
		config.(*kafkabroker.Config).SessionTimeout = 6 * time.Second // so long the partitions of a killed process wait
		return nil
	}, opts)
}

func run(ctx context.Context, b broker.Broker, service, dsn string) error {
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
		Binding: idempotency.Binding{Scope: service}, Keys: db.Keys(), Parking: db.Parking(),
	})
	if err != nil {
		return err
	}
	feeder, err := parking.NewFeeder(parking.FeederConfig{
		Store: db.Parking(), Scopes: []string{service + "/ship", service + "/books"}, Run: once.RunParked,
	})
	if err != nil {
		return err
	}
	// The relay brings what handlers published to the broker.
	relay, err := outbox.NewRelay(outbox.RelayConfig{
		Source: db.Outbox(), Publisher: b.Publisher(), Owner: watermill.NewUUID(),
		Lease: 3 * time.Second, // so long what a killed process was to publish waits
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(once.Middleware)
	if err := addHandlers(ctx, router, b, service); err != nil {
		return fmt.Errorf("add the handlers: %w", err)
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return router.Run(context.WithoutCancel(ctx)) })
	running.Go(func() error { return feeder.Run(ctx) })
	running.Go(func() error { return relay.Run(ctx) })
	running.Go(func() error {
		<-ctx.Done()
		return errors.Join(once.Stop(context.WithoutCancel(ctx)), router.Close())
	})
	return running.Wait()
}
