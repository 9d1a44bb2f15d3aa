package rabbitbroker_test

import (
	"context"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

func batch(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage("p")
	}
	return msgs
}

// The broker confirms what no queue takes; it is an error all the same, for each message, until there is a queue.
func TestF062Unroutable(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "nowhere")
	msgs := batch(10)
	for range 2 {
		errs := b.Publisher().PublishBatch(t.Context(), topic, msgs)
		require.Len(t, errs, 10)
		for _, err := range errs {
			require.ErrorIs(t, err, outbox.ErrUnroutable)
			require.NotErrorIs(t, err, outbox.ErrUnpublishable)
		}
	}
	require.ErrorIs(t, b.Publisher().Publish(topic, msgs[0]), outbox.ErrUnroutable)

	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, msgs...))
	wantReady(t, server, topic+":g", 10)
}

// Returns belong to their own messages also while others are routed on the same connection.
func TestF062UnroutableAmongOthers(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Classic))
	there, nowhere := testenv.Name(t, "there"), testenv.Name(t, "nowhere")
	declare(t, b, there, "g")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 5 {
				for _, err := range b.Publisher().PublishBatch(t.Context(), there, batch(10)) {
					if err != nil {
						t.Errorf("routed: %v", err)
					}
				}
			}
		})
		wg.Go(func() {
			for range 5 {
				for _, err := range b.Publisher().PublishBatch(t.Context(), nowhere, batch(10)) {
					if err == nil {
						t.Error("a message that no queue took counts as published")
					}
				}
			}
		})
	}
	wg.Wait()
	wantReady(t, server, there+":g", 1000)
}

// A queue, or the exchange, that somebody deletes comes back with the next publish after the refused one.
func TestPublishHealsDeletedTopology(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "deleted")
	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
	ch := channel(t, server.URL)

	_, err := ch.QueueDelete(topic+":g", false, false, false)
	require.NoError(t, err)
	require.ErrorIs(t, b.Publisher().Publish(topic, newMessage("p")), outbox.ErrUnroutable)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))

	require.NoError(t, ch.ExchangeDelete(topic, false, false))
	require.Error(t, b.Publisher().Publish(topic, newMessage("p")))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
	wantReady(t, server, topic+":g", 2)
}

// Metadata that RabbitMQ would take for routing is refused for good, and costs no channel.
func TestReservedByRabbitMQ(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "cc")
	declare(t, b, topic, "g")
	msgs := batch(3)
	msgs[1].Metadata.Set("CC", "somebody@example.org")
	errs := b.Publisher().PublishBatch(t.Context(), topic, msgs)
	require.NoError(t, errs[0])
	require.ErrorIs(t, errs[1], outbox.ErrUnpublishable)
	require.NoError(t, errs[2])
}

// The pool of channels survives many lost connections: each failed channel gives its place back.
func TestPoolHeals(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	b := open(t, config(u.String(), rabbitbroker.Classic))
	topic := testenv.Name(t, "heals")
	declare(t, b, topic, "g")

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	confirmed, failed := 0, 0
	for range 40 {
		wg.Go(func() {
			for ctx.Err() == nil {
				attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
				err := b.Publisher().PublishBatch(attempt, topic, batch(1))[0]
				cancel()
				mu.Lock()
				if err == nil {
					confirmed++
				} else {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	for range 20 {
		mu.Lock()
		before := confirmed
		mu.Unlock()
		eventually(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if confirmed <= before {
				return context.DeadlineExceeded
			}
			return nil
		})
		proxy.Cut()
		proxy.Restore()
	}
	stop()
	wg.Wait()
	require.Positive(t, failed, "no cut met a publish")
	for range 40 {
		require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
	}
	confirmed += 40
	// A publish that failed may have arrived; one that was confirmed has.
	eventually(t, func() error {
		if q := queue(t, server, topic+":g"); q.Ready < confirmed {
			return context.DeadlineExceeded
		}
		return nil
	})
}

// A channel that cannot be opened costs its publish and nothing else.
func TestPoolKeepsPlaces(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	cfg := config(server.URL+"?channel_max=2", rabbitbroker.Classic)
	cfg.PublishTimeout = 5 * time.Second
	b := open(t, cfg)
	topic := testenv.Name(t, "places")
	declare(t, b, topic, "g")
	var failed atomic.Int64
	for round := 0; failed.Load() < 50; round++ {
		require.Less(t, round, 100, "two channels were enough for all")
		var wg sync.WaitGroup
		for range 40 {
			wg.Go(func() {
				if b.Publisher().Publish(topic, newMessage("p")) != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
	}
	for range 20 {
		require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
	}
}

// A network that swallows packets ends a publish at its context's deadline, and again at the configured one.
func TestPublishHonoursDeadlines(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	cfg := config(u.String(), rabbitbroker.Quorum)
	cfg.PublishTimeout = time.Second
	b := open(t, cfg)
	topic := testenv.Name(t, "deadline")
	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))

	proxy.Pause()
	began := time.Now()
	err = b.Publisher().Publish(topic, newMessage("p"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "not confirmed within 1s")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Publisher().PublishBatch(ctx, topic, batch(1))[0], context.DeadlineExceeded)
	require.Less(t, time.Since(began), 15*time.Second)
	proxy.Resume()
	require.NoError(t, b.Publisher().Publish(topic, newMessage("p")))
}

// Messages of one batch keep their order on the way.
func TestBatchKeepsOrder(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	b := open(t, config(server.URL, rabbitbroker.Quorum))
	topic := testenv.Name(t, "order")
	declare(t, b, topic, "g")
	msgs := batch(600)
	require.NoError(t, b.Publisher().Publish(topic, msgs...))
	_, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", InFlight: 1000})
	for _, msg := range msgs {
		received := next(t, got)
		require.Equal(t, msg.UUID, received.UUID)
		require.True(t, received.Ack())
	}
}
