package envelope_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/natsbroker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

const patience = 60 * time.Second

// wire is a broker whose producer is behind a proxy and whose consumer is not.
type wire struct {
	proxy *testenv.TCPProxy
	pub   message.Publisher
	sub   message.Subscriber
}

// The adapter of RabbitMQ.
func onRabbitMQ(t *testing.T, topic string) wire {
	rabbit := testenv.RabbitMQ(t)
	u, err := url.Parse(rabbit.URL)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	open := func(address string) broker.Broker {
		u.Host = address
		b, err := rabbitbroker.Factory().Open(t.Context(), func(into any) error {
			into.(*rabbitbroker.Config).URL = u.String()
			return nil
		}, broker.Options{Logger: slog.New(slog.DiscardHandler), DataDir: t.TempDir(), ClientName: "test"})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	consumer, producer := open(u.Host), open(proxy.Addr)
	return between(t, topic, proxy, consumer, producer)
}

// between is a wire of two connections of an adapter.
func between(t *testing.T, topic string, proxy *testenv.TCPProxy, consumer, producer broker.Broker) wire {
	t.Helper()
	group := broker.Subscription{Topic: topic, Group: "test"}
	require.NoError(t, consumer.Declare(t.Context(), topic, []broker.Subscription{group}))
	sub, err := consumer.Subscriber(group)
	require.NoError(t, err)
	return wire{proxy, producer.Publisher(), sub}
}

// JetStream in the process.
func onNATS(t *testing.T, topic string) wire {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(s.Shutdown)
	require.True(t, s.ReadyForConnections(patience))
	open := func(address string) broker.Broker {
		b, err := natsbroker.Factory().Open(t.Context(), func(into any) error {
			into.(*natsbroker.Config).URL = "nats://" + address
			return nil
		}, broker.Options{Logger: slog.New(slog.DiscardHandler), DataDir: t.TempDir(), ClientName: "test"})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	}
	proxy := testenv.Proxy(t, s.Addr().String())
	consumer, producer := open(s.Addr().String()), open(proxy.Addr)
	return between(t, topic, proxy, consumer, producer)
}

// attempts counts what a publisher is asked for, and the failures.
type attempts struct {
	message.Publisher
	mu     sync.Mutex
	failed []error
	sent   int
}

func (a *attempts) Publish(topic string, messages ...*message.Message) error {
	err := a.Publisher.Publish(topic, messages...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent++
	if err != nil {
		a.failed = append(a.failed, err)
	}
	return err
}

// deliveries are the identities with which a router received messages.
type deliveries struct {
	mu  sync.Mutex
	got [][2]string
}

func (d *deliveries) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		d.mu.Lock()
		d.got = append(d.got, [2]string{msg.UUID, msg.Metadata.Get(envelope.KeyHeader)})
		d.mu.Unlock()
		return h(msg)
	}
}

func (d *deliveries) of(key string) (found [][2]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.got {
		if i[1] == key {
			found = append(found, i)
		}
	}
	return found
}

// TestALostAnswerIsHarmless: the broker has the message, its answer is lost, the producer sends again by itself; the effect happens once.
func TestALostAnswerIsHarmless(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, topic string) wire{"rabbitmq": onRabbitMQ, "nats": onNATS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			loseAnAnswer(t, open)
		})
	}
}

func loseAnAnswer(t *testing.T, open func(t *testing.T, topic string) wire) {
	t.Helper()
	topic := testenv.Name(t, "lost")
	w := open(t, topic)
	seen, effects := consume(t, topic, w.sub)

	counted := &attempts{Publisher: w.pub}
	producer := envelope.NewPublisher(counted, envelope.PublisherOptions{Attempts: 1000, Wait: 20 * time.Millisecond, MaxWait: 200 * time.Millisecond})
	send := func(key string) <-chan error {
		msg := message.NewMessage("", []byte("1"))
		msg.Metadata.Set(envelope.KeyHeader, key)
		sent := make(chan error, 1)
		go func() { sent <- producer.Publish(topic, msg) }()
		return sent
	}
	require.NoError(t, <-send("order-1-creation"), "everything works")

	w.proxy.Hold(testenv.ToClient)
	sent := send("order-2-creation")
	testenv.Eventually(t, patience, func() error { return has(effects, "order-2-creation") })
	require.Empty(t, sent, "the producer waits for an answer")
	w.proxy.Cut()
	testenv.Eventually(t, patience, func() error {
		counted.mu.Lock()
		defer counted.mu.Unlock()
		if len(counted.failed) == 0 {
			return errors.New("the producer has not noticed it")
		}
		return nil
	})
	w.proxy.Resume()
	w.proxy.Restore()
	select {
	case err := <-sent:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the producer does not come back")
	}
	require.NoError(t, <-send("order-3-creation"))

	testenv.Eventually(t, patience, func() error { return has(effects, "order-3-creation") })
	testenv.Eventually(t, patience, func() error {
		if len(seen.of("order-2-creation")) < 2 {
			return errors.New("the copy has not come yet")
		}
		return nil
	})
	copies := seen.of("order-2-creation")
	require.Len(t, copies, 2)
	require.Equal(t, copies[0], copies[1], "UUID and key are the same in each sending")
	var all []string
	require.NoError(t, effects.Select(&all, `SELECT key FROM effects ORDER BY key`))
	require.Equal(t, []string{"order-1-creation", "order-2-creation", "order-3-creation"}, all)
}

func has(effects *sqlx.DB, key string) error {
	var n int
	if err := effects.Get(&n, `SELECT count(*) FROM effects WHERE key = ?`, key); err != nil {
		return err
	}
	if n == 0 {
		return errors.New("no effect of " + key)
	}
	return nil
}

// consume runs a router with the middleware, whose handler leaves one row for each run.
func consume(t *testing.T, topic string, sub message.Subscriber) (*deliveries, *sqlx.DB) {
	t.Helper()
	db, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "test.db")}, store.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Migrate(t.Context(), nil))
	_, err = db.DB().Exec(`CREATE TABLE effects (key TEXT)`)
	require.NoError(t, err)
	once, err := idempotency.NewRouter(idempotency.Config{Binding: idempotency.Binding{Scope: "test"}, Keys: db.Keys(), Parking: db.Parking()})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	seen := &deliveries{}
	router.AddMiddleware(seen.middleware, once.Middleware)
	router.AddConsumerHandler("effect", topic, sub, func(msg *message.Message) error {
		tx, _ := idempotency.TxFrom(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects VALUES (?)`, tx.Key())
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, once.Stop(ctx))
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, db.Close())
	})
	return seen, db.DB()
}
