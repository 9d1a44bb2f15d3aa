package kafkabroker_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/transact"
)

// BenchmarkTransactions copies 50,000 messages of 100 bytes from a topic of six partitions to another, at least once with
// the plain subscriber and publisher, and in transactions with keys. It reports messages per second of both, and the
// second as a part of the first.
func BenchmarkTransactions(b *testing.B) {
	const count = 50000
	for b.Loop() {
		plain := benchCopies(b, count, copyPlainly)
		keyed := benchCopies(b, count, copyInTransactions)
		b.ReportMetric(count/plain.Seconds(), "plain-msg/s")
		b.ReportMetric(count/keyed.Seconds(), "transactions-msg/s")
		b.ReportMetric(plain.Seconds()/keyed.Seconds(), "ratio")
	}
}

// benchCopies returns how long it takes until a full topic is copied and committed.
func benchCopies(b *testing.B, count int, run func(b *testing.B, k *kafkabroker.Broker, sub broker.Subscription, out string) (caughtUp <-chan struct{}, stop func())) time.Duration {
	b.Helper()
	in, out := newTopic(b, 6, nil), newTopic(b, 6, nil)
	b.Cleanup(func() { removeTopic(b, in+"-keys") })
	k := open(b, testConfig(b))
	msgs := newMessages(count, "")
	for _, msg := range msgs {
		msg.Payload = append(msg.Payload, make([]byte, 95)...)
		msg.Metadata.Set(envelope.KeyHeader, msg.UUID)
		msg.Metadata.Set(envelope.OrderingKeyHeader, msg.UUID)
	}
	for _, err := range k.Publisher().PublishBatch(b.Context(), in, msgs) {
		require.NoError(b, err)
	}
	require.NoError(b, k.Declare(b.Context(), out, nil))
	sub := broker.Subscription{Topic: in, Group: in, InFlight: 1024}
	require.NoError(b, k.DeclareKeys(b.Context(), sub))
	began := time.Now()
	caughtUp, stop := run(b, k, sub, out)
	<-caughtUp
	took := time.Since(began)
	stop()
	return took
}

func copyPlainly(b *testing.B, k *kafkabroker.Broker, sub broker.Subscription, out string) (<-chan struct{}, func()) {
	r := subscribe(b, k, sub)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var running sync.WaitGroup
		defer running.Wait()
		for msg := range r.msgs {
			running.Go(func() {
				c := copyTo(out, msg)
				if err := k.Publisher().Publish(c.Topic, c.Message); err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		}
	}()
	return r.sub.CaughtUp(), func() { r.drain(); <-done }
}

func copyInTransactions(b *testing.B, k *kafkabroker.Broker, sub broker.Subscription, out string) (<-chan struct{}, func()) {
	source, err := k.Transactions(sub, time.Hour)
	require.NoError(b, err)
	require.NoError(b, source.Start(func(ctx context.Context, shard transact.Shard) error {
		for {
			batch, err := copiesOf(shard, out, 500)
			if err != nil && !errors.Is(err, transact.ErrStopping) {
				return err
			}
			if failed := shard.Commit(ctx, batch); failed != nil || err != nil {
				return failed
			}
		}
	}))
	return source.CaughtUp(), func() { require.NoError(b, source.Drain(context.Background())) }
}

// copiesOf takes what is there, up to so many messages, and makes the batch of those that are new.
func copiesOf(shard transact.Shard, out string, most int) (transact.Batch, error) {
	var batch transact.Batch
	for wait := 200 * time.Millisecond; len(batch.Outputs) < most; wait = 0 {
		msg, err := shard.Next(wait)
		if err != nil || msg == nil {
			return batch, err
		}
		if _, known := shard.Lookup(keyOf(msg)); !known {
			batch.Outputs = append(batch.Outputs, copyTo(out, msg))
			batch.Keys = append(batch.Keys, keyOfCopy(msg))
		}
	}
	return batch, nil
}

func keyOfCopy(msg *message.Message) transact.Key {
	return transact.Key{Key: keyOf(msg), Entry: transact.Entry{State: transact.Completed, Fingerprint: "off"}}
}
