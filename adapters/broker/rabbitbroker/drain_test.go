package rabbitbroker_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// A drain gives what was sent ahead to other replicas while a slow message still runs; with one active consumer it
// keeps it, because the next consumer must not pass the slow one.
func TestDrainGivesBack(t *testing.T) {
	t.Parallel()
	for name, ordered := range map[string]bool{"shared": false, "ordered": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			one, two := open(t, config(server.URL, rabbitbroker.Quorum)), open(t, config(server.URL, rabbitbroker.Quorum))
			topic := testenv.Name(t, "drain")
			sub := broker.Subscription{Topic: topic, Group: "g", InFlight: 10, Ordered: ordered}
			require.NoError(t, one.Declare(t.Context(), topic, []broker.Subscription{sub}))
			require.NoError(t, one.Publisher().Publish(topic, batch(10)...))
			first, msgs := subscribe(t, one, sub)
			slow := next(t, msgs)
			_, others := subscribe(t, two, sub)

			drained := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
				defer cancel()
				drained <- first.Drain(ctx)
			}()
			if ordered {
				select {
				case <-others:
					require.FailNow(t, "another replica got a message behind one that still runs")
				case <-time.After(700 * time.Millisecond):
				}
				require.True(t, slow.Ack())
			}
			for range 9 {
				require.True(t, next(t, others).Ack())
			}
			if !ordered {
				require.NoError(t, slow.Context().Err())
				require.True(t, slow.Ack())
			}
			require.NoError(t, <-drained)
		})
	}
}

// A prefetch above the number in flight hides the network's delay and hands over no more for it.
func TestPrefetchIsNotInFlight(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	cfg := config(server.URL, rabbitbroker.Quorum)
	cfg.Prefetch = 50
	b := open(t, cfg)
	topic := testenv.Name(t, "prefetch")
	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, batch(50)...))
	sub, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", InFlight: 8})
	held := make([]*message.Message, 8)
	for i := range held {
		held[i] = next(t, msgs)
	}
	select {
	case <-msgs:
		require.FailNow(t, "nine messages in flight")
	case <-time.After(700 * time.Millisecond):
	}
	for _, msg := range held {
		require.True(t, msg.Ack())
	}
	for range 42 {
		require.True(t, next(t, msgs).Ack())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, sub.Drain(ctx))
	wantReady(t, server, topic+":g", 0)
}

// A network that swallows packets holds up neither a drain whose context has ended nor Close for long.
func TestStopOnDeadNetwork(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	b := open(t, config(u.String(), rabbitbroker.Quorum))
	topic := testenv.Name(t, "dead")
	declare(t, b, topic, "one", "two")
	require.NoError(t, b.Publisher().Publish(topic, batch(4)...))
	drained, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "one"})
	_, others := subscribe(t, b, broker.Subscription{Topic: topic, Group: "two"})
	held, other := next(t, msgs), next(t, others)

	proxy.Pause()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, drained.Drain(ctx), context.DeadlineExceeded)
	require.Error(t, held.Context().Err())
	require.NoError(t, b.Close())
	require.Less(t, time.Since(began), 15*time.Second)
	require.Error(t, other.Context().Err())
}
