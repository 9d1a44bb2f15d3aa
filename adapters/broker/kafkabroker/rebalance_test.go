package kafkabroker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// fleet is a group of replicas whose handlers take a while, and what they did.
type fleet struct {
	t     *testing.T
	topic string

	mu    sync.Mutex
	runs  map[string]int  // by position
	acked map[string]bool // noted before the ack

	replicas []*replica
}

type replica struct {
	line *line
	b    *kafkabroker.Broker
	r    *reader
	done chan struct{}
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, topic: newTopic(t, 6, nil), runs: map[string]int{}, acked: map[string]bool{}}
	t.Cleanup(func() {
		for _, r := range f.replicas {
			_ = r.b.Close()
			<-r.done
		}
	})
	return f
}

const handlerTime = 100 * time.Millisecond

func (f *fleet) add() {
	conf := testConfig(f.t)
	r := &replica{line: &line{}, done: make(chan struct{})}
	conf.Dial = r.line.dial
	r.b = open(f.t, conf)
	r.r = subscribe(f.t, r.b, broker.Subscription{Topic: f.topic, Group: f.topic, InFlight: 20})
	f.replicas = append(f.replicas, r)
	go func() {
		defer close(r.done)
		var handlers sync.WaitGroup
		defer handlers.Wait()
		for msg := range r.r.msgs {
			handlers.Go(func() { f.handle(msg) })
		}
	}()
}

func (f *fleet) handle(msg *message.Message) {
	position := delivery(msg).Position
	f.mu.Lock()
	f.runs[position]++
	f.mu.Unlock()
	select {
	case <-time.After(handlerTime):
	case <-msg.Context().Done():
		return // taken away
	}
	f.mu.Lock()
	f.acked[position] = true
	f.mu.Unlock()
	msg.Ack()
}

// remove takes the oldest replica out, by a drain or by its death.
func (f *fleet) remove(graceful bool) {
	r := f.replicas[0]
	f.replicas = f.replicas[1:]
	if graceful {
		require.NoError(f.t, r.r.sub.Drain(f.t.Context()))
	} else {
		r.line.cut()
	}
	require.NoError(f.t, r.b.Close())
	<-r.done
}

func (f *fleet) publish(ctx context.Context, batches int) (published int) {
	b := open(f.t, testConfig(f.t))
	for range batches {
		msgs := newMessages(20, "")
		for i, msg := range msgs {
			msg.Metadata.Set(envelope.OrderingKeyHeader, fmt.Sprint("entity-", i))
		}
		require.NoError(f.t, b.Publisher().Publish(f.topic, msgs...))
		published += len(msgs)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return published
}

var sixPartitions = []int32{0, 1, 2, 3, 4, 5}

// checkCommits fails when an offset was committed whose record, or one before it, was not acked.
func (f *fleet) checkCommits() {
	offsets := committed(f.t, f.topic, f.topic, sixPartitions...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for partition, end := range offsets {
		for offset := range end {
			position := fmt.Sprintf("%s/%d/%d", f.topic, partition, offset)
			require.True(f.t, f.acked[position], "%s is committed (%d), and was not acked", position, end)
		}
	}
}

// finish waits until everything is handled and committed, and returns how many runs were too many.
func (f *fleet) finish(published int) (duplicates int) {
	testenv.Eventually(f.t, patience, func() error {
		sum := int64(0)
		for _, end := range committed(f.t, f.topic, f.topic, sixPartitions...) {
			sum += max(end, 0)
		}
		if sum != int64(published) {
			return fmt.Errorf("%d of %d are committed", sum, published)
		}
		return nil
	})
	f.checkCommits()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Len(f.t, f.runs, published)
	for _, n := range f.runs {
		duplicates += n - 1
	}
	return duplicates
}

// F068: replicas come and go by rebalances and drains while work is in flight. Nothing is lost, committed too early or stuck, and, because
// handlers finish within the settle time-out, nothing runs twice.
func TestF068RebalanceWithWorkInFlight(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.add()
	f.add()
	published := make(chan int, 1)
	go func() { published <- f.publish(t.Context(), 60) }()
	for i := range 4 {
		<-time.After(2 * time.Second)
		f.add()
		f.checkCommits()
		if i%2 == 1 {
			f.remove(true)
		}
		f.checkCommits()
	}
	require.Zero(t, f.finish(<-published), "graceful rebalances run messages twice")
}

// F068 with replicas that die: what was in flight there runs again elsewhere, and no more than that.
func TestF068RebalanceWithKills(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.add()
	f.add()
	published := make(chan int, 1)
	go func() { published <- f.publish(t.Context(), 60) }()
	const kills = 3
	for range kills {
		<-time.After(3 * time.Second)
		f.add()
		f.remove(false)
		f.checkCommits()
	}
	// A dead replica's acks of its last moments, at most an interval of commits, are not committed either.
	require.LessOrEqual(t, f.finish(<-published), kills*(20+20*5))
}

// A handler that takes longer than the settle time-out does not hold the rebalance: its context ends, its late ack is ignored, and the
// new owner gets the message soon.
func TestSlowHandlerDoesNotHoldRebalance(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 2, nil)
	conf := testConfig(t)
	conf.SettleTimeout = 500 * time.Millisecond
	one := open(t, conf)
	sub := broker.Subscription{Topic: topic, Group: topic}
	first := subscribe(t, one, sub)
	for _, key := range []string{"a", "b", "c", "d"} { // both partitions
		require.NoError(t, one.Publisher().Publish(topic, newMessages(3, key)...))
	}
	held := first.take(12)
	second := subscribe(t, open(t, conf), sub)
	began := time.Now()
	msg := second.next()
	require.Less(t, time.Since(began), 20*time.Second)
	require.True(t, delivery(msg).Redelivered)
	for _, msg := range held {
		select {
		case <-msg.Context().Done():
		case <-time.After(patience):
			require.Fail(t, "a context outlives its assignment")
		}
		msg.Ack() // too late
	}
	msg.Ack()
	seen := map[string]bool{msg.UUID: true}
	for len(seen) < 12 {
		select {
		case msg := <-first.msgs:
			seen[msg.UUID] = true
			msg.Ack()
		case msg := <-second.msgs:
			seen[msg.UUID] = true
			msg.Ack()
		case <-time.After(patience):
			require.Fail(t, "late acks were committed", "%d of 12 came again", len(seen))
		}
	}
}
