package sqlbroker_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

const patience = 30 * time.Second

func stockSubscriber(t testing.TB, db database, group string) *wsql.Subscriber {
	t.Helper()
	sub, err := wsql.NewSubscriber(plain(t, db), wsql.SubscriberConfig{
		ConsumerGroup: group, SchemaAdapter: db.stockSchema(), OffsetsAdapter: db.stockOffsets(), InitializeSchema: true,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	return sub
}

func stockPublisher(t testing.TB, conn wsql.ContextExecutor, schema wsql.SchemaAdapter, initialize bool) *wsql.Publisher {
	t.Helper()
	pub, err := wsql.NewPublisher(conn, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: initialize}, watermill.NopLogger{})
	require.NoError(t, err)
	return pub
}

// declared opens a broker and declares a new topic for the groups.
func declared(t testing.TB, db database, groups ...string) (broker.Broker, string) {
	t.Helper()
	b, topic := open(t, config(db, nil)), testenv.Name(t, "t")
	declare(t, b, topic, groups...)
	return b, topic
}

func declare(t testing.TB, b broker.Broker, topic string, groups ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, b.Declare(ctx, topic, subscriptions(topic, groups...)))
}

func subscriptions(topic string, groups ...string) []broker.Subscription {
	subs := make([]broker.Subscription, len(groups))
	for i, group := range groups {
		subs[i] = broker.Subscription{Topic: topic, Group: group}
	}
	return subs
}

func subscribe(t testing.TB, b broker.Broker, sub broker.Subscription) (broker.Subscriber, <-chan *message.Message) {
	t.Helper()
	s, err := b.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)
	return s, msgs
}

func next(t testing.TB, msgs <-chan *message.Message) *message.Message {
	t.Helper()
	return within(t, msgs, patience)
}

func within(t testing.TB, msgs <-chan *message.Message, d time.Duration) *message.Message {
	t.Helper()
	select {
	case msg, open := <-msgs:
		require.True(t, open, "the channel closed")
		return msg
	case <-time.After(d):
		require.FailNow(t, "no message came", "within %s", d)
		return nil
	}
}

// silent fails when a message comes.
func silent(t testing.TB, msgs <-chan *message.Message, d time.Duration) {
	t.Helper()
	select {
	case msg, open := <-msgs:
		if open {
			require.FailNow(t, "a message came", "payload %.40q", msg.Payload)
		}
	case <-time.After(d):
	}
}

// ackAll acks messages until n came, and returns their payloads.
func ackAll(t testing.TB, msgs <-chan *message.Message, n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		msg := next(t, msgs)
		all[i] = string(msg.Payload)
		require.True(t, msg.Ack())
	}
	return all
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(uuid.NewString(), []byte(payload))
}

func publish(t testing.TB, pub message.Publisher, topic string, payloads ...string) {
	t.Helper()
	msgs := make([]*message.Message, len(payloads))
	for i, payload := range payloads {
		msgs[i] = newMessage(payload)
	}
	require.NoError(t, pub.Publish(topic, msgs...))
}

func numbered(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("m-%d", i)
	}
	return all
}

// begin starts a transaction that ends with the test at the latest.
func begin(t testing.TB, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func count(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}
