//go:build !race

// In sarama v1.61.1 a producer whose record is refused writes transactionManager's state while another of its goroutines reads it without the
// lock, which the race detector reports. So this test runs without it.

package kafkabroker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

// What Kafka refuses costs its own message only.
func TestF060FlowBuriesWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.out = newTopic(t, 1, map[string]string{"max.message.bytes": "20000"})
	p.does(func(ctx context.Context, out *idempotency.Outputs, msg *message.Message) error {
		switch string(msg.Payload) {
		case "large":
			return out.Publish(ctx, p.out, message.NewMessage("", []byte(strings.Repeat("x", 30000))))
		case "huge":
			return out.Publish(ctx, p.out, message.NewMessage("", []byte(strings.Repeat("x", 2<<20))))
		case "late":
			late := message.NewMessage("", []byte("late"))
			late.Metadata.Set(envelope.DeliverAtHeader, time.Now().Add(time.Hour).Format(time.RFC3339))
			return out.Publish(ctx, p.out, late)
		}
		return nil
	})
	for _, key := range []string{"a", "large", "b", "huge", "c", "late", "d"} {
		p.put(key, key, key)
	}
	source := p.run()
	requireOnce(t, published(t, p.out, 4), []string{"a", "b", "c", "d"})
	reasons := map[string]string{}
	for _, row := range p.rows(parking.Dead, 3) {
		reasons[row.Key] = row.Reason
	}
	require.Equal(t, map[string]string{"large": "unpublishable", "huge": "payload-too-large", "late": "unpublishable"}, reasons)
	p.drain(source)
}
