package rabbitbroker_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// ctl runs rabbitmqctl against a private server, whose folder the API tells.
func ctl(t *testing.T, server *testenv.Server, args ...string) {
	t.Helper()
	var nodes []struct {
		Name string `json:"name"`
		DB   string `json:"db_dir"`
	}
	eventually(t, func() error { // a node that has just started tells its name only
		api(t, testenv.Rabbit{API: server.API}, http.MethodGet, "/nodes", nil, &nodes)
		if len(nodes) != 1 || nodes[0].DB == "" {
			return fmt.Errorf("nodes: %+v", nodes)
		}
		return nil
	})
	folder, _, found := strings.Cut(nodes[0].DB, "/mnesia/")
	require.True(t, found, "the node's folder: %q", nodes[0].DB)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(folder), "ports", "rabbitmq.*_EPMD_PORT"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	port, err := os.ReadFile(files[0])
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Not Debian's wrapper in the path, which becomes another user with another cookie.
	cmd := exec.CommandContext(ctx, "/usr/lib/rabbitmq/bin/rabbitmqctl", append([]string{"-n", nodes[0].Name}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(folder, "home"), "ERL_EPMD_PORT="+strings.TrimSpace(string(port)))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestPrivateServer holds what would disturb other users of a server: it stops one, and changes its settings.
func TestPrivateServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	server := testenv.Private(t, "rabbitmq")
	t.Run("F046BrokerRestart", func(t *testing.T) { testBrokerRestart(t, server) })
	t.Run("F065ConsumerTimeout", func(t *testing.T) { testConsumerTimeout(t, server) })
	t.Run("BrokersSizeLimit", func(t *testing.T) { testSizeLimit(t, server) })
	t.Run("MemoryAlarm", func(t *testing.T) { testMemoryAlarm(t, server) })
}

// The broker is restarted, then killed, while messages flow: what was confirmed is there, both sides go on by themselves.
func testBrokerRestart(t *testing.T, server *testenv.Server) {
	flows := []*flow{newFlow(t, server, rabbitbroker.Quorum), newFlow(t, server, rabbitbroker.Classic)}
	for _, interrupt := range []func(){server.Restart, func() { server.Crash(); server.Start() }} {
		for _, f := range flows {
			f.more(t, 200)
		}
		interrupt()
		began := time.Now()
		for _, f := range flows {
			f.more(t, 200)
		}
		require.Less(t, time.Since(began), 30*time.Second)
	}
	for _, f := range flows {
		f.finish(t)
	}
}

// flow publishes and consumes all the time, and counts what was confirmed and what arrived.
type flow struct {
	sub  broker.Subscriber
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu        sync.Mutex
	confirmed map[string]bool
	seen      map[string]bool
}

func newFlow(t *testing.T, server *testenv.Server, queueType string) *flow {
	b := open(t, config(server.Address, queueType))
	topic := testenv.Name(t, queueType)
	declare(t, b, topic, "g")
	f := &flow{confirmed: map[string]bool{}, seen: map[string]bool{}}
	sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g", InFlight: 16})
	ctx, stop := context.WithCancel(t.Context())
	f.sub, f.stop = sub, stop
	f.wg.Go(func() {
		for msg := range got {
			f.see(msg.UUID)
			msg.Ack()
		}
	})
	f.wg.Go(func() { f.publish(ctx, b, topic) })
	return f
}

// finish stops publishing and waits for all that was confirmed.
func (f *flow) finish(t *testing.T) {
	t.Helper()
	f.stop()
	eventually(t, f.complete)
	require.NoError(t, f.sub.Consuming())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.sub.Drain(ctx))
	f.wg.Wait()
}

func (f *flow) see(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[id] = true
}

func (f *flow) publish(ctx context.Context, b broker.Broker, topic string) {
	for ctx.Err() == nil {
		msgs := batch(20)
		for i, err := range b.Publisher().PublishBatch(ctx, topic, msgs) {
			if err == nil {
				f.mu.Lock()
				f.confirmed[msgs[i].UUID] = true
				f.mu.Unlock()
			}
		}
	}
}

// more waits until n more messages arrived.
func (f *flow) more(t *testing.T, n int) {
	t.Helper()
	f.mu.Lock()
	want := len(f.seen) + n
	f.mu.Unlock()
	testenv.Eventually(t, time.Minute, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.seen) < want {
			return fmt.Errorf("%d of %d messages arrived", len(f.seen), want)
		}
		return nil
	})
}

func (f *flow) complete() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	missing := 0
	for id := range f.confirmed {
		if !f.seen[id] {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d of %d confirmed messages are missing", missing, len(f.confirmed))
	}
	return nil
}

// The broker takes an unsettled delivery away after consumer_timeout: the context ends, consuming goes on over
// a new channel, the late ack is quiet and the copy is marked.
func testConsumerTimeout(t *testing.T, server *testenv.Server) {
	ctl(t, server, "eval", "application:set_env(rabbit, consumer_timeout, 3000), application:set_env(rabbit, channel_tick_interval, 1000).")
	b := open(t, config(server.Address, rabbitbroker.Quorum))
	topic := testenv.Name(t, "timeout")
	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("slow")))
	sub, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	slow := next(t, got)
	select {
	case <-slow.Context().Done():
	case <-time.After(patience):
		require.FailNow(t, "the broker took the delivery away and the context lives")
	}
	copied := next(t, got)
	require.Equal(t, slow.UUID, copied.UUID)
	require.True(t, envelope.DeliveryFrom(copied.Context()).Redelivered)
	require.True(t, slow.Ack())
	require.True(t, copied.Ack())
	require.NoError(t, b.Publisher().Publish(topic, newMessage("next")))
	last := next(t, got)
	require.Equal(t, "next", string(last.Payload))
	require.True(t, last.Ack())
	require.NoError(t, sub.Consuming())
}

// A message above the broker's own limit is refused for good; its neighbours arrive.
func testSizeLimit(t *testing.T, server *testenv.Server) {
	ctl(t, server, "eval", "application:set_env(rabbit, max_message_size, 100000).")
	b := open(t, config(server.Address, rabbitbroker.Quorum))
	topic := testenv.Name(t, "size")
	declare(t, b, topic, "g")
	msgs := batch(5)
	msgs[2].Payload = make([]byte, 200_000)
	errs := b.Publisher().PublishBatch(t.Context(), topic, msgs)
	seen := map[string]bool{}
	for i, err := range errs {
		if i == 2 {
			require.ErrorIs(t, err, outbox.ErrUnpublishable)
			require.ErrorContains(t, err, "larger")
			continue
		}
		require.NoError(t, err)
		seen[msgs[i].UUID] = false
	}
	require.ErrorIs(t, b.Publisher().Publish(topic, msgs[2]), outbox.ErrUnpublishable)
	_, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	for missing := len(seen); missing > 0; {
		msg := next(t, got)
		require.Contains(t, seen, msg.UUID)
		if !seen[msg.UUID] {
			seen[msg.UUID] = true
			missing--
		}
		require.True(t, msg.Ack())
	}
}

// Under a memory alarm publishing waits no longer than its context, says why, and goes on after it; acks are not held back.
func testMemoryAlarm(t *testing.T, server *testenv.Server) {
	b := open(t, config(server.Address, rabbitbroker.Quorum))
	topic := testenv.Name(t, "alarm")
	declare(t, b, topic, "g")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("before")))

	ctl(t, server, "set_vm_memory_high_watermark", "0.00001")
	attempt := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		return b.Publisher().PublishBatch(ctx, topic, batch(3))[0]
	}
	// The broker tells of its alarm only when somebody publishes.
	eventually(t, func() error {
		if err := attempt(); err == nil || !strings.Contains(err.Error(), "holds back publishers") {
			return fmt.Errorf("publishing under the alarm: %w", err)
		}
		return nil
	})
	require.ErrorIs(t, attempt(), context.DeadlineExceeded)
	require.NoError(t, b.Ping(t.Context()), "an alarm does not keep the broker from answering")
	_, got := subscribe(t, b, broker.Subscription{Topic: topic, Group: "g"})
	first := next(t, got)
	require.True(t, first.Ack())

	waiting := make(chan error, 1)
	go func() { waiting <- b.Publisher().Publish(topic, newMessage("after")) }()
	ctl(t, server, "set_vm_memory_high_watermark", "0.4")
	require.NoError(t, <-waiting)
	for {
		msg := next(t, got)
		require.True(t, msg.Ack())
		if string(msg.Payload) == "after" {
			break
		}
	}
}
