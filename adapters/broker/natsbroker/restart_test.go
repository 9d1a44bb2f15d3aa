package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// F046: the broker is stopped and crashes under load. Flow resumes by itself, and nothing that was confirmed is lost.
func TestF046BrokerRestart(t *testing.T) {
	t.Parallel()
	server := testenv.Private(t, "nats")
	open := func() broker.Broker {
		return openTest(t, Factory(), func(c *Config) { c.URL, c.AckWait = server.Address, 4*time.Second }, "")
	}
	publisher, consumer := open(), open()
	defer publisher.Close()
	defer consumer.Close()
	sub := broker.Subscription{Topic: "restart", Group: "g"}
	require.NoError(t, publisher.Declare(t.Context(), sub.Topic, []broker.Subscription{sub}))
	s, err := consumer.Subscriber(sub)
	require.NoError(t, err)
	msgs, err := s.Subscribe(t.Context(), sub.Topic)
	require.NoError(t, err)

	var mu sync.Mutex
	confirmed, handled := map[string]bool{}, map[string]bool{}
	count := func(m map[string]bool) int {
		mu.Lock()
		defer mu.Unlock()
		return len(m)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for msg := range msgs {
			mu.Lock()
			handled[string(msg.Payload)] = true
			mu.Unlock()
			msg.Ack()
		}
	})
	publishing, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() {
		for n := 0; publishing.Err() == nil; n++ {
			batch := []*message.Message{one(fmt.Sprint(n, "a")), one(fmt.Sprint(n, "b"))}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			for i, err := range publisher.Publisher().PublishBatch(ctx, sub.Topic, batch) {
				switch {
				case err == nil:
					mu.Lock()
					confirmed[string(batch[i].Payload)] = true
					mu.Unlock()
				case !errors.Is(err, outbox.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("an outage counts as a fault of the message: %v", err)
				}
			}
			cancel()
		}
	})
	flows := func() {
		t.Helper()
		before, handledBefore := count(confirmed), count(handled)
		testenv.Eventually(t, 30*time.Second, func() error {
			if count(confirmed) < before+200 || count(handled) < handledBefore+200 {
				return fmt.Errorf("%d confirmed after %d, %d handled after %d", count(confirmed), before, count(handled), handledBefore)
			}
			return s.Consuming()
		})
	}
	flows()
	server.Stop()
	require.Error(t, s.Consuming())
	require.Error(t, consumer.Ping(t.Context()))
	server.Start()
	flows()
	server.Crash()
	server.Start()
	flows()
	stop()
	load.Wait()
	testenv.Eventually(t, 20*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		for payload := range confirmed {
			if !handled[payload] {
				return fmt.Errorf("%s was confirmed and is not handled", payload)
			}
		}
		return nil
	})
	require.NoError(t, s.Drain(t.Context()))
	work.Wait()
	require.NoError(t, consumer.Ping(t.Context()))
}
