package idempotency_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// An ordinary Watermill router and handler, with any broker: the middleware makes each key's effect happen exactly once.
func ExampleRouter_Middleware() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sqlitestore.Open(ctx, sqlitestore.Config{Path: filepath.Join(dir, "shop.db")}, store.Options{})
	check(err)
	defer func() { _ = db.Close() }()
	check(db.Migrate(ctx, nil))
	_, err = db.DB().ExecContext(ctx, `CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER NOT NULL); INSERT INTO stock VALUES ('tea', 10)`)
	check(err)

	once, err := idempotency.NewRouter(idempotency.Config{
		Binding: idempotency.Binding{Scope: "shop"}, Keys: db.Keys(), Parking: db.Parking(),
	})
	check(err)
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(once.Middleware)
	router.AddConsumerHandler("ship", "orders", broker, func(msg *message.Message) error {
		tx, _ := idempotency.TxFrom(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `UPDATE stock SET n = n - 1 WHERE item = ?`, string(msg.Payload))
		return err
	})
	go func() { check(router.Run(ctx)) }()
	<-router.Running()

	for range 3 { // a producer that is not sure, or a broker that delivers again
		order := message.NewMessage(watermill.NewUUID(), []byte("tea"))
		order.Metadata.Set(envelope.KeyHeader, "order-17")
		check(broker.Publish("orders", order))
	}
	var left int
	check(db.DB().GetContext(ctx, &left, `SELECT n FROM stock WHERE item = 'tea'`))
	fmt.Println("left:", left)

	check(once.Stop(ctx))
	check(router.Close())
	check(broker.Close())
	// Output: left: 9
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
