package brokertest

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

var batchTests = []test{
	{"BatchErrorForEach", testBatchErrorForEach},
	{"BatchOrdered", testBatchOrdered},
	{"BatchConcurrent", testBatchConcurrent},
	{"BatchEndedContext", testBatchEndedContext},
}

// One bad message in the middle of good ones fails alone.
func testBatchErrorForEach(k *kit) {
	b, topic := k.declared("g")
	msgs := make([]*message.Message, 7)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprint(i))
	}
	msgs[3].Payload = make([]byte, 2<<20)
	errs := b.Publisher().PublishBatch(k.Context(), topic, msgs)
	require.Len(k, errs, len(msgs))
	for i, err := range errs {
		if i == 3 {
			var violation *envelope.Violation
			require.ErrorAs(k, err, &violation)
			continue
		}
		require.NoError(k, err, "message %d", i)
	}
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	require.Len(k, r.ackUntil("0", "1", "2", "4", "5", "6"), 6)
}

// Where the capability is declared, a refused message stops those of its ordering key that follow it, and no others.
func testBatchOrdered(k *kit) {
	b, topic := k.declared("g")
	if !b.Capabilities().OrderedBatch {
		k.Skip("the broker does not declare OrderedBatch")
	}
	msgs := make([]*message.Message, 6)
	for i := range msgs {
		msgs[i] = newMessage(fmt.Sprint(i))
		msgs[i].Metadata.Set(envelope.OrderingKeyHeader, fmt.Sprintf("order-%d", i%2))
	}
	msgs[2].Payload = make([]byte, 2<<20)
	errs := b.Publisher().PublishBatch(k.Context(), topic, msgs)
	require.Len(k, errs, len(msgs))
	for i, err := range errs {
		if stopped := i == 2 || i == 4; stopped {
			require.Error(k, err, "message %d", i)
			continue
		}
		require.NoError(k, err, "message %d", i)
	}
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	r.ackUntil("0", "1", "3", "5")
	r.silent("an earlier message of its ordering key was refused")
}

func testBatchConcurrent(k *kit) {
	b, topic := k.declared("g")
	const publishers, each = 8, 50
	var wg sync.WaitGroup
	want := []string{}
	for p := range publishers {
		payloads := numbered(fmt.Sprintf("p%d", p), each)
		want = append(want, payloads...)
		wg.Go(func() {
			msgs := make([]*message.Message, each)
			for i := range msgs {
				msgs[i] = newMessage(payloads[i])
			}
			for i, err := range b.Publisher().PublishBatch(k.Context(), topic, msgs) {
				if err != nil {
					k.Errorf("publisher %d, message %d: %v", p, i, err)
				}
			}
		})
	}
	wg.Wait()
	seen := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil(want...)
	for payload, times := range seen {
		require.Equal(k, 1, times, payload)
	}
}

// An ended context is an error for each message that was not confirmed, and the publisher stays usable.
func testBatchEndedContext(k *kit) {
	b, topic := k.declared("g")
	ctx, cancel := context.WithCancel(k.Context())
	cancel()
	errs := b.Publisher().PublishBatch(ctx, topic, []*message.Message{newMessage("1"), newMessage("2")})
	require.Len(k, errs, 2)
	for _, err := range errs {
		require.ErrorIs(k, err, context.Canceled)
	}
	k.publish(b, topic, "good")
	k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).ackUntil("good")
}
