package rabbitbroker_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// A redelivery from a quorum queue, which carries an integer header, is read; with and without a dead-letter exchange.
func TestF018QuorumRedelivery(t *testing.T) {
	t.Parallel()
	for _, deadLetters := range []bool{false, true} {
		name := map[bool]string{false: "alone", true: "dead-letter exchange"}[deadLetters]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			cfg := config(server.URL, rabbitbroker.Quorum)
			cfg.DeliveryLimit = 5
			b := open(t, cfg)
			topic := testenv.Name(t, "redelivery")
			if deadLetters {
				ch := channel(t, server.URL)
				_, err := ch.QueueDeclare("dead", true, false, false, false, nil)
				require.NoError(t, err)
				api(t, server, http.MethodPut, "/policies/"+server.VHost+"/dlx", map[string]any{
					"pattern": "^" + topic + ":", "apply-to": "queues",
					"definition": map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"},
				}, nil)
			}
			declare(t, b, topic, "g")
			msg := newMessage("p")
			msg.Metadata.Set("m", "v")
			require.NoError(t, b.Publisher().Publish(topic, msg))

			_, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			require.True(t, next(t, msgs).Nack())
			again := next(t, msgs)
			require.True(t, msg.Equals(again))
			require.True(t, envelope.DeliveryFrom(again.Context()).Redelivered)
			require.True(t, again.Ack())
			wantReady(t, server, topic+":g", 0)
			if deadLetters {
				require.Zero(t, queue(t, server, "dead").Ready)
			}
		})
	}
}

// What a low limit does, and that the default has none in practice: the limit that Oncemill declares is never met.
func TestF066DeliveryLimit(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{"limit 5": 5, "default": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			cfg := config(server.URL, rabbitbroker.Quorum)
			if limit > 0 {
				cfg.DeliveryLimit = limit
			}
			b := open(t, cfg)
			topic := testenv.Name(t, "limit")
			declare(t, b, topic, "g")
			require.NoError(t, b.Publisher().Publish(topic, newMessage("bad"), newMessage("neighbour")))
			sub, msgs := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
			deliveries := 0
			for range 8 {
				var payload string
				select {
				case msg := <-msgs:
					if payload = string(msg.Payload); payload == "bad" {
						deliveries++
						require.True(t, msg.Nack())
						continue
					}
					require.True(t, msg.Ack())
				case <-time.After(4 * time.Second):
				}
			}
			if limit > 0 {
				require.Equal(t, limit+1, deliveries, "RabbitMQ delivers once more than the limit, then drops")
				wantReady(t, server, topic+":g", 0)
				require.Contains(t, b.Capabilities().Caveats[0], "drops a message after 5")
				return
			}
			require.GreaterOrEqual(t, deliveries, 7)
			require.NoError(t, sub.Close())
			wantReady(t, server, topic+":g", 1)
		})
	}
}

// A queue that somebody made with a limit and without dead letters is not used silently.
func TestF066ForeignLimitIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	topic := testenv.Name(t, "limit")
	_, err := channel(t, server.URL).QueueDeclare(topic+":g", true, false, false, false,
		map[string]any{"x-queue-type": "quorum", "x-delivery-limit": int64(5)})
	require.NoError(t, err)
	groups := []broker.Subscription{{Topic: topic, Group: "g"}}
	cfg := config(server.URL, rabbitbroker.Quorum)
	cfg.Topology = rabbitbroker.Verify
	operators := open(t, cfg)
	require.ErrorContains(t, operators.Declare(t.Context(), topic, groups), "it does not exist", "the exchange is missing")

	b := open(t, config(server.URL, rabbitbroker.Quorum))
	err = b.Declare(t.Context(), topic, groups)
	require.ErrorContains(t, err, "x-delivery-limit")
	require.ErrorContains(t, err, "set topology to verify")

	// The exchange is there by now.
	require.NoError(t, operators.Declare(t.Context(), topic, groups))
	require.Contains(t, operators.Capabilities().Caveats[0], "delivery limit")
}

// Ordered queues put a nacked message back in its place.
func TestOrderedNackKeepsPlace(t *testing.T) {
	t.Parallel()
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			b := open(t, config(server.URL, queueType))
			topic := testenv.Name(t, "place")
			sub := broker.Subscription{Topic: topic, Group: "g", Ordered: true, InFlight: 2}
			require.NoError(t, b.Declare(t.Context(), topic, []broker.Subscription{sub}))
			for _, payload := range []string{"1", "2", "3", "4"} {
				require.NoError(t, b.Publisher().Publish(topic, newMessage(payload)))
			}
			_, msgs := subscribe(t, b, sub)
			one, two := next(t, msgs), next(t, msgs)
			require.True(t, one.Nack())
			<-one.Context().Done()
			again := next(t, msgs)
			require.Equal(t, "1", string(again.Payload), "a nacked message lost its place")
			require.True(t, two.Ack())
			require.Equal(t, "3", string(next(t, msgs).Payload))
		})
	}
}
