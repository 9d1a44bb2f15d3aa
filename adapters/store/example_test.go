package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// An HTTP API stores an order, and tells of it in the same transaction. The relay of any process (oncemill run, or outbox.Relay) publishes what has committed.
func ExampleInTx() {
	ctx := context.Background()
	db, closeDB := shop(ctx)
	defer closeDB()

	place := func(id string) error {
		tx, err := db.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id); err != nil {
			return err // the second order of this id: its message is not written either
		}
		key, err := envelope.Compose("order", id, "creation")
		if err != nil {
			return err
		}
		msg := message.NewMessage("", []byte(`{"order_id":"`+id+`"}`))
		msg.Metadata.Set(envelope.KeyHeader, key)
		if err := store.InTx(ctx, db, tx, envelope.PublisherOptions{}).Publish("orders.created", msg); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(place("123"))
	fmt.Println(place("123") != nil)
	printOutbox(ctx, db)
	// Output:
	// <nil>
	// true
	// orders.created order-123-creation {"order_id":"123"}
}

// The event bus of Watermill's CQRS component, in a transaction of the caller's.
func ExampleInTx_eventBus() {
	ctx := context.Background()
	db, closeDB := shop(ctx)
	defer closeDB()
	type OrderPlaced struct{ ID string }

	tx, err := db.DB().BeginTxx(ctx, nil)
	check(err)
	defer func() { _ = tx.Rollback() }()
	bus, err := cqrs.NewEventBusWithConfig(store.InTx(ctx, db, tx, envelope.PublisherOptions{}), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		OnPublish: func(p cqrs.OnEventSendParams) error { // the bus gives a random UUID; the key is ours
			key, err := envelope.Compose("order", p.Event.(OrderPlaced).ID, "placed")
			p.Message.Metadata.Set(envelope.KeyHeader, key)
			return err
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName}, Logger: watermill.NopLogger{},
	})
	check(err)
	check(bus.Publish(ctx, OrderPlaced{ID: "123"}))
	check(tx.Commit())
	printOutbox(ctx, db)
	// Output: OrderPlaced order-123-placed {"ID":"123"}
}

func shop(ctx context.Context) (db *sqlitestore.Store, closeDB func()) {
	dir, err := os.MkdirTemp("", "example-")
	check(err)
	db, err = sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(dir, "shop.db")}, store.Options{})
	check(err)
	check(db.Migrate(ctx, nil))
	_, err = db.DB().ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	check(err)
	return db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func printOutbox(ctx context.Context, db store.Store) {
	records, err := db.Outbox().List(ctx, false, 10)
	check(err)
	for _, r := range records {
		fmt.Println(r.Topic, r.Key, string(r.Payload))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
