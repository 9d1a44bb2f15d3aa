package idempotency_test

import (
	"database/sql"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// The tests of this file show four ways in which Watermill alone fails on an ordinary input, and that the same input is handled
// right behind the middleware. The wrong numbers are asserted: should a version of Watermill mend one, the test says so.

// overSQL is a topic of watermill-sql in the harness's own database, with one message, and a counter.
func (h *harness) overSQL(t *testing.T, ackDeadline time.Duration) message.Subscriber {
	t.Helper()
	_, err := h.DB().ExecContext(t.Context(), `CREATE TABLE counter (n INTEGER NOT NULL); INSERT INTO counter VALUES (0)`)
	require.NoError(t, err)
	db := h.DB().DB
	sub, err := watermillsql.NewSubscriber(db, watermillsql.SubscriberConfig{
		ConsumerGroup: "group", SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true, AckDeadline: &ackDeadline, PollInterval: 20 * time.Millisecond, ResendInterval: 10 * time.Millisecond, RetryInterval: 10 * time.Millisecond,
	}, watermill.NopLogger{})
	require.NoError(t, err) // the router closes it
	require.NoError(t, sub.SubscribeInitialize(topic))
	pub, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, pub.Publish(topic, newMessage("key", `{"add":1}`)))
	return sub
}

func (h *harness) counter(t *testing.T) int { return h.count(t, `SELECT n FROM counter`) }

// acknowledged is how many messages watermill-sql has done with.
func (h *harness) acknowledged(t *testing.T) int {
	return h.count(t, `SELECT coalesce(max(offset_acked), 0) FROM "watermill_offsets_`+topic+`"`)
}

const addOne = `UPDATE counter SET n = n + 1`

// plainAdd adds one in the transaction that watermill-sql gives its handlers.
func plainAdd(msg *message.Message) error {
	tx, ok := watermillsql.TxFromContext(msg.Context())
	if !ok {
		return sql.ErrTxDone
	}
	_, err := tx.ExecContext(msg.Context(), addOne)
	return err
}

// onceAdd adds one in the transaction of the message's key.
func onceAdd(msg *message.Message) error {
	tx, ok := idempotency.TxFrom(msg.Context())
	if !ok {
		return sql.ErrTxDone
	}
	_, err := tx.ExecContext(msg.Context(), addOne)
	return err
}

// thrice makes a handler that does its work, fails three times after it, and then succeeds.
func thrice(add func(*message.Message) error) message.NoPublishHandlerFunc {
	var calls atomic.Int64
	return func(msg *message.Message) error {
		if err := add(msg); err != nil {
			return err
		}
		if calls.Add(1) <= 3 {
			return errBroken
		}
		return nil
	}
}

// E1: a handler fails three times and then succeeds. The effects of the failed attempts are committed, too, although the comment of
// TxFromContext says that a nack rolls back.
func TestE1PlainWatermillKeepsFailedAttempts(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		h := onPostgres(t)
		sub := h.overSQL(t, patience)
		runRouter(t, func(r *message.Router) { r.AddConsumerHandler("count", topic, sub, thrice(plainAdd)) })
		eventually(t, "the message is acknowledged", func() bool { return h.acknowledged(t) == 1 })
		require.Equal(t, 4, h.counter(t), "one message, four effects")
	})
	t.Run("oncemill", func(t *testing.T) {
		t.Parallel()
		h := onPostgres(t)
		sub := h.overSQL(t, patience)
		once := h.newRouter(t, idempotency.Binding{})
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(once.Middleware)
			r.AddConsumerHandler("count", topic, sub, thrice(onceAdd))
		})
		eventually(t, "the message is acknowledged", func() bool { return h.acknowledged(t) == 1 })
		require.Equal(t, 1, h.counter(t))
	})
}

// E2: a handler that never succeeds. When the ack deadline ends the attempts, their effects are committed, and the message comes again.
func TestE2PlainWatermillCommitsWhatNeverSucceeded(t *testing.T) {
	t.Parallel()
	never := func(add func(*message.Message) error) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			if err := add(msg); err != nil {
				return err
			}
			return errBroken
		}
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		h := onPostgres(t)
		sub := h.overSQL(t, 300*time.Millisecond)
		runRouter(t, func(r *message.Router) { r.AddConsumerHandler("count", topic, sub, never(plainAdd)) })
		eventually(t, "effects of a message that failed are there", func() bool { return h.counter(t) > 1 })
		require.Zero(t, h.acknowledged(t), "and it is still to come")
	})
	t.Run("oncemill", func(t *testing.T) {
		t.Parallel()
		h := onPostgres(t)
		sub := h.overSQL(t, patience)
		once := h.newRouter(t, idempotency.Binding{Retry: idempotency.Retry{Attempts: 3}})
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(once.Middleware)
			r.AddConsumerHandler("count", topic, sub, never(onceAdd))
		})
		eventually(t, "the message is acknowledged", func() bool { return h.acknowledged(t) == 1 })
		require.Zero(t, h.counter(t))
		require.Equal(t, "attempts-exhausted", h.dead(t).Reason)
	})
}

// E3: Watermill's Deduplicator and a handler that fails once. The redelivery is taken for a duplicate, and the message is lost.
func TestE3PlainWatermillLosesAFailedMessage(t *testing.T) {
	t.Parallel()
	failsOnce := func(calls, successes *atomic.Int64, work func(*message.Message) error) message.NoPublishHandlerFunc {
		return func(msg *message.Message) error {
			if calls.Add(1) == 1 {
				return errBroken
			}
			successes.Add(1)
			return work(msg)
		}
	}
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		var calls, successes atomic.Int64
		channel := newChannel(t)
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware((&middleware.Deduplicator{}).Middleware)
			r.AddConsumerHandler("count", topic, channel, failsOnce(&calls, &successes, func(*message.Message) error { return nil }))
		})
		require.NoError(t, channel.Publish(topic, newMessage("key", "1"))) // returns when it is acked
		require.EqualValues(t, 1, calls.Load())
		require.Zero(t, successes.Load(), "acked, and never handled")
	})
	t.Run("oncemill", func(t *testing.T) {
		eachStore(t, func(t *testing.T, h *harness) {
			var calls, successes atomic.Int64
			channel, once := newChannel(t), h.newRouter(t, idempotency.Binding{})
			runRouter(t, func(r *message.Router) {
				r.AddMiddleware(once.Middleware)
				r.AddConsumerHandler("count", topic, channel, failsOnce(&calls, &successes, effectIn))
			})
			require.NoError(t, channel.Publish(topic, newMessage("key", "1")))
			require.EqualValues(t, 2, calls.Load())
			require.EqualValues(t, 1, successes.Load())
			require.Equal(t, 1, h.effects(t))
		})
	})
}

// E4: the Deduplicator before two handlers of one topic. Its keys have no scope: one handler's claim hides the message from the other.
func TestE4PlainWatermillHidesAMessageFromAHandler(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		var calls atomic.Int64
		count := func(*message.Message) error { calls.Add(1); return nil }
		channel := newChannel(t)
		// These are its defaults; it sets them itself with a data race between its handlers.
		keys, err := middleware.NewMapExpiringKeyRepository(time.Minute)
		require.NoError(t, err)
		deduplicator := &middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherAdler32(math.MaxInt64), Repository: keys, Timeout: time.Minute}
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(deduplicator.Middleware)
			r.AddConsumerHandler("ledger", topic, channel, count)
			r.AddConsumerHandler("mail", topic, channel, count)
		})
		require.NoError(t, channel.Publish(topic, newMessage("key", "1")))
		require.EqualValues(t, 1, calls.Load(), "two handlers, one call")
	})
	t.Run("oncemill", func(t *testing.T) {
		eachStore(t, func(t *testing.T, h *harness) {
			channel, once := newChannel(t), h.newRouter(t, idempotency.Binding{})
			runRouter(t, func(r *message.Router) {
				r.AddMiddleware(once.Middleware)
				r.AddConsumerHandler("ledger", topic, channel, effectIn)
				r.AddConsumerHandler("mail", topic, channel, effectIn)
			})
			require.NoError(t, channel.Publish(topic, newMessage("key", "1")))
			require.Equal(t, 2, h.effectsOf(t, "key"))
			require.Equal(t, keystore.Completed, h.key(t, "svc/ledger", "key").State)
			require.Equal(t, keystore.Completed, h.key(t, "svc/mail", "key").State)
			require.Empty(t, h.rows(t, parking.Waiting))
		})
	})
}
