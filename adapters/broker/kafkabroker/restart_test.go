package kafkabroker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// traffic is a publisher that tries again, and consumers, and what went through them.
type traffic struct {
	t         *testing.T
	topic     string
	mu        sync.Mutex
	confirmed []string
	received  map[string]int
	stop      chan struct{}
	stopped   chan struct{}
}

func (f *traffic) consume(b *kafkabroker.Broker) {
	r := subscribe(f.t, b, broker.Subscription{Topic: f.topic, Group: f.topic})
	go func() {
		for msg := range r.msgs {
			f.mu.Lock()
			f.received[msg.UUID]++
			f.mu.Unlock()
			msg.Ack()
		}
	}()
}

// publish does as the relay does: it sends the same identities until they are confirmed.
func (f *traffic) publish(b *kafkabroker.Broker) {
	defer close(f.stopped)
	for i := 0; ; i++ {
		for pending := newMessages(5, fmt.Sprint("k", i%7)); len(pending) > 0; {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			errs := b.Publisher().PublishBatch(ctx, f.topic, pending)
			cancel()
			var left []*message.Message
			f.mu.Lock()
			for i, err := range errs {
				if err != nil {
					left = append(left, pending[i])
				} else {
					f.confirmed = append(f.confirmed, pending[i].UUID)
				}
			}
			f.mu.Unlock()
			pending = left
			select {
			case <-f.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func (f *traffic) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.received)
}

// flows waits until twenty more messages came through.
func (f *traffic) flows() {
	f.t.Helper()
	from, began := f.count(), time.Now()
	testenv.Eventually(f.t, patience, func() error {
		if n := f.count(); n < from+20 {
			return fmt.Errorf("%d messages came", n-from)
		}
		return nil
	})
	f.t.Logf("twenty messages came within %s", time.Since(began).Round(time.Millisecond))
}

// F046: the broker is stopped, and killed, under a publisher that tries again and two consumers. The flow goes on by itself within
// 30 seconds, and everything that was confirmed arrives.
func TestF046BrokerRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts a server of its own, which takes a minute")
	}
	t.Parallel()
	server := testenv.Private(t, "kafka")
	conf := testConfig(t)
	conf.Brokers = strings.Split(server.Address, ",")
	f := &traffic{t: t, topic: testenv.Name(t, "kb"), received: map[string]int{}, stop: make(chan struct{}), stopped: make(chan struct{})}
	publisher := open(t, conf)
	require.NoError(t, publisher.Declare(t.Context(), f.topic, nil))
	f.consume(open(t, conf))
	f.consume(open(t, conf))
	go f.publish(publisher)
	f.flows()
	server.Restart()
	f.flows()
	server.Crash()
	server.Start()
	f.flows()
	close(f.stop)
	<-f.stopped
	testenv.Eventually(t, patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, id := range f.confirmed {
			if f.received[id] == 0 {
				return fmt.Errorf("a confirmed message is missing; %d of %d have come", len(f.received), len(f.confirmed))
			}
		}
		return nil
	})
}

// A replica loses its connections for a second, with work in flight. It comes back by itself, and what it settled meanwhile or later is
// not lost.
func TestShortOutage(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 2, nil)
	own := &line{}
	conf := testConfig(t)
	conf.Dial = own.dial
	b := open(t, conf)
	require.NoError(t, b.Publisher().Publish(topic, newMessages(20, "")...))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	held := r.take(20)
	own.cut()
	for _, msg := range held[:10] {
		msg.Ack()
	}
	time.Sleep(time.Second) // the outage
	own.restore()
	for _, msg := range held[10:] {
		msg.Ack()
	}
	require.NoError(t, b.Publisher().Publish(topic, newMessages(10, "")...))
	testenv.Eventually(t, patience, func() error {
		for {
			select {
			case msg := <-r.msgs:
				msg.Ack()
				continue
			case <-time.After(100 * time.Millisecond):
			}
			at := committed(t, topic, topic, 0, 1)
			if at[0]+at[1] != 30 {
				return fmt.Errorf("committed %v", at)
			}
			return nil
		}
	})
	require.NoError(t, r.sub.Consuming())
}
