package brokertest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var batchTests = []test{
	{"BatchErrorForEach", testBatchErrorForEach},
	{"BatchOrdered", testBatchOrdered},
	{"BatchConcurrent", testBatchConcurrent},
	{"BatchEndedContext", testBatchEndedContext},
	{"BatchOutage", testBatchOutage},
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

// While the broker as a whole is away, errors say so, of messages on their way and of later ones: no attempt may be counted against them.
func testBatchOutage(k *kit) {
	if k.h.Crash == nil {
		k.Skip("the harness cannot cut a replica off")
	}
	b, topic := k.declared("g")
	k.publish(b, topic, "before")
	publish := func(ctx context.Context) {
		msgs := make([]*message.Message, 20)
		for i := range msgs {
			msgs[i] = newMessage("during the outage")
			msgs[i].Metadata.Set(envelope.OrderingKeyHeader, fmt.Sprintf("order-%d", i))
		}
		for _, err := range b.Publisher().PublishBatch(ctx, topic, msgs) {
			if err != nil && !outbox.IsUnavailable(err) {
				k.Errorf("it counts against the message: %v", err)
			}
		}
	}
	// The library's own way to say it is what is asked for, so the context does not end first.
	cut := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				ctx, cancel := context.WithTimeout(k.Context(), 15*time.Second)
				publish(ctx)
				cancel()
				select {
				case <-cut:
					return
				default:
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // so that some are on their way
	k.h.Crash(k, b)
	close(cut)
	wg.Wait()
	ctx, cancel := context.WithTimeout(k.Context(), 5*time.Second)
	defer cancel()
	publish(ctx)
	require.NoError(k, b.Close())
	publish(ctx) // a broker that closes says nothing about the message either
}
