package outbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// printer stands for a broker's publisher: rabbitbroker's, kafkabroker's, ….
type printer struct{}

func (printer) PublishBatch(_ context.Context, topic string, msgs []*message.Message) []error {
	for _, msg := range msgs {
		fmt.Println(topic, msg.Metadata.Get(envelope.KeyHeader), string(msg.Payload))
	}
	return make([]error, len(msgs)) // all of them confirmed
}

// A relay in a program of your own publishes what has committed to the outbox, and nothing that was rolled back.
func ExampleRelay() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "example-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(dir, "shop.db")}, store.Options{})
	check(err)
	defer func() { _ = db.Close() }()
	check(db.Migrate(ctx, nil))

	for _, kept := range []bool{false, true} {
		tx, err := db.DB().BeginTx(ctx, nil)
		check(err)
		order := message.NewMessage("", fmt.Appendf(nil, `{"kept":%t}`, kept))
		order.Metadata.Set(envelope.KeyHeader, "order-17-creation")
		check(store.InTx(ctx, db, tx, envelope.PublisherOptions{}).Publish("orders.created", order))
		if kept {
			check(tx.Commit())
		} else {
			check(tx.Rollback())
		}
	}

	relay, err := outbox.NewRelay(outbox.RelayConfig{
		Source: db.Outbox(), Publisher: printer{}, Owner: "example",
		Observer: outbox.Observer{Published: func(int) { cancel() }},
	})
	check(err)
	check(relay.Run(ctx)) // until ctx ends: then it finishes what it publishes
	// Output: orders.created order-17-creation {"kept":true}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
