// Command kafka is a plain Watermill router on watermill-kafka's own subscriber. Of Oncemill it has the middleware and the
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
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
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
	brokers := flag.String("kafka", "127.0.0.1:19092", "Kafka's addresses")
	topic := flag.String("topic", "orders", "topic of the orders; the consumer group is named after it")
	dsn := flag.String("postgres", "postgres://oncemill@127.0.0.1:15432/oncemill?sslmode=disable", "PostgreSQL")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, strings.Split(*brokers, ","), *topic, *dsn); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, brokers []string, topic, dsn string) error {
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
	settings := kafka.DefaultSaramaSubscriberConfig()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest   // else orders from before the first start are never delivered
	settings.Consumer.Group.Session.Timeout = 6 * time.Second // so long the partitions of a killed process wait
	settings.Consumer.Group.Heartbeat.Interval = 2 * time.Second
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: topic + "-shop", OverwriteSaramaConfig: settings,
		InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: -1},
	}, logger)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(topic); err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(once.Middleware)
	router.AddConsumerHandler("count", topic, subscriber, count)

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
