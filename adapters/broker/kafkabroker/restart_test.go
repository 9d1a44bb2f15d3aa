package kafkabroker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// F046: the broker is stopped, and killed, under a publisher that tries again and two consumers. Everything that was confirmed arrives, and
// the flow goes on by itself.
func TestF046BrokerRestart(t *testing.T) {
	t.Parallel()
	server := testenv.Private(t, "kafka")
	conf := testConfig(t)
	conf.Brokers = strings.Split(server.Address, ",")
	topic := testenv.Name(t, "kb")
	publisher := open(t, conf)
	require.NoError(t, publisher.Declare(t.Context(), topic, nil))

	var mu sync.Mutex
	seen := map[string]int{}
	for range 2 {
		r := subscribe(t, open(t, conf), broker.Subscription{Topic: topic, Group: topic})
		go func() {
			for msg := range r.msgs {
				mu.Lock()
				seen[msg.UUID]++
				mu.Unlock()
				msg.Ack()
			}
		}()
	}
	stop, confirmed := make(chan struct{}), make(chan []string, 1)
	go func() {
		var ids []string
		defer func() { confirmed <- ids }()
		for i := 0; ; i++ {
			msgs := newMessages(5, fmt.Sprint("k", i%7))
			for pending := msgs; len(pending) > 0; { // as the relay does: the same identities until they are confirmed
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				errs := publisher.Publisher().PublishBatch(ctx, topic, pending)
				cancel()
				t.Logf("%s publish %d: %v", time.Now().Format("05.000"), i, errs[0])
				left := pending[:0:0]
				for i, err := range errs {
					if err != nil {
						left = append(left, pending[i])
						continue
					}
					ids = append(ids, pending[i].UUID)
				}
				pending = left
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	time.Sleep(time.Second)
	t.Log(time.Now().Format("05.000"), "restart")
	server.Restart()
	t.Log(time.Now().Format("05.000"), "up")
	time.Sleep(2 * time.Second)
	server.Crash()
	t.Log(time.Now().Format("05.000"), "crashed")
	server.Start()
	t.Log(time.Now().Format("05.000"), "up")
	time.Sleep(2 * time.Second)
	close(stop)
	ids := <-confirmed
	require.Greater(t, len(ids), 50)
	testenv.Eventually(t, patience, func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			if seen[id] == 0 {
				return fmt.Errorf("a confirmed message is missing; %d of %d have come", len(seen), len(ids))
			}
		}
		return nil
	})
	t.Logf("%d messages confirmed, %d distinct received", len(ids), len(seen))
}
