package natsbroker

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// A backlog of large messages does not overrun the connection: the server would drop a client that reads too slowly.
func TestLargeBacklog(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	const count = 120
	batch := make([]*message.Message, 10)
	for range count / len(batch) {
		for i := range batch {
			batch[i] = one(strings.Repeat("x", envelope.DefaultMaxPayload))
		}
		require.NoError(t, k.b.Publisher().Publish(k.topic, batch...))
	}
	_, msgs := k.subscribe(k.b, broker.Subscription{InFlight: 200})
	for range count {
		require.True(t, k.next(msgs).Ack())
	}
	require.Zero(t, k.b.link.nc.Stats().Reconnects)
}

// A message that is larger than a request may bring comes all the same, and holds up nothing.
func TestLargerThanRequest(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		k := newBench(t)
		k.b.pullBytes = 1000
		large := strings.Repeat("x", 3000)
		payloads := []string{"1", large + "2", large + "3", "4", large + "5"}
		k.publish(payloads...)
		_, msgs := k.subscribe(k.b, broker.Subscription{InFlight: 10, Ordered: ordered})
		for _, payload := range payloads {
			msg := k.next(msgs)
			require.Equal(t, payload, string(msg.Payload))
			require.True(t, msg.Ack())
		}
	}
}
