package natsbroker

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	orderKeys = 20
	orderEach = 100
)

// runOrdered consumes an ordered subscription and notes what it is handed, in that order. It settles after a while,
// many messages at once and not in their order, so that a death leaves gaps behind.
func runOrdered(b broker.Broker, dir, topic string) error {
	handled, err := os.OpenFile(filepath.Join(dir, "handled"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	consumer, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "ordered", InFlight: 64, Ordered: true})
	if err != nil {
		return err
	}
	msgs, err := consumer.Subscribe(context.Background(), topic)
	if err != nil {
		return err
	}
	for msg := range msgs {
		fmt.Fprintf(handled, "%s %s %d\n", msg.Metadata.Get(envelope.OrderingKeyHeader), msg.Payload, os.Getpid())
		go func() {
			time.Sleep(rand.N(60 * time.Millisecond)) // the work of a handler
			msg.Ack()
		}()
		time.Sleep(time.Millisecond) // the work of the engine
	}
	return nil
}

// An ordered subscription keeps each key's order over replicas that are killed and started again; with the
// embedded server a replica's death may be the server's too.
func TestOrderedKilled(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		testOrderedKilled(t, dir, "", func() broker.Broker { return openTest(t, EmbeddedFactory(), nil, dir) })
	})
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		url := testenv.NATS(t)
		testOrderedKilled(t, t.TempDir(), url, func() broker.Broker {
			return openTest(t, Factory(), func(c *Config) { c.URL = url }, "")
		})
	})
}

func testOrderedKilled(t *testing.T, dir, url string, open func() broker.Broker) {
	topic := testenv.Name(t, "ordered")
	b := open()
	require.NoError(t, b.Declare(t.Context(), topic, []broker.Subscription{{Group: "ordered", Ordered: true}}))
	for n := range orderEach {
		msgs := make([]*message.Message, orderKeys)
		for k := range msgs {
			msgs[k] = message.NewMessage(envelope.NewUUID(), []byte(strconv.Itoa(n)))
			msgs[k].Metadata.Set(envelope.OrderingKeyHeader, "key-"+strconv.Itoa(k))
		}
		require.NoError(t, b.Publisher().Publish(topic, msgs...))
	}
	require.NoError(t, b.Close()) // from here the replicas serve

	variables := []string{replicaOrdered + "=" + topic, replicaURL + "=" + url}
	replicas := map[int]*replica{}
	start := func(name string) {
		r := startReplica(t, dir, name, variables...)
		replicas[r.cmd.Process.Pid] = r
	}
	start("a")
	start("b")
	for kill := range 2 {
		holder := 0
		testenv.Eventually(t, 40*time.Second, func() error {
			all := lines(t, dir, "handled")
			if len(all) < (kill+1)*orderKeys*orderEach/4 {
				return fmt.Errorf("%d messages are handled", len(all))
			}
			holder, _ = strconv.Atoi(strings.Fields(all[len(all)-1])[2])
			return nil
		})
		require.NoError(t, replicas[holder].cmd.Process.Kill())
		_ = replicas[holder].cmd.Wait()
		delete(replicas, holder)
		start("k" + strconv.Itoa(kill))
	}
	testenv.Eventually(t, 40*time.Second, func() error {
		if missing := orderKeys*orderEach - len(firstOf(lines(t, dir, "handled"))); missing > 0 {
			return fmt.Errorf("%d messages are missing", missing)
		}
		return nil
	})
	wantOrder(t, lines(t, dir, "handled"))
}

// firstOf are the lines without repeats.
func firstOf(all []string) map[string]bool {
	seen := map[string]bool{}
	for _, line := range all {
		f := strings.Fields(line)
		seen[f[0]+" "+f[1]] = true
	}
	return seen
}

// wantOrder fails where a delivery passes over a message of its key that was not handed over yet.
func wantOrder(t *testing.T, all []string) {
	t.Helper()
	next, holders := map[string]int{}, map[string]bool{}
	for at, line := range all {
		f := strings.Fields(line)
		n, err := strconv.Atoi(f[1])
		require.NoError(t, err)
		require.LessOrEqual(t, n, next[f[0]], "line %d: %s passes over %d", at, line, next[f[0]])
		next[f[0]] = max(next[f[0]], n+1)
		holders[f[2]] = true
	}
	require.GreaterOrEqual(t, len(holders), 3, "the kills met no holder")
	t.Logf("%d deliveries of %d messages by %d holders", len(all), orderKeys*orderEach, len(holders))
}

func openReplica(ctx context.Context, dir, name, url string) (broker.Broker, error) {
	factory, decode := EmbeddedFactory(), func(any) error { return nil }
	if url != "" {
		factory = Factory()
		decode = func(into any) error {
			into.(*Config).URL = url
			return nil
		}
	}
	return factory.Open(ctx, decode, broker.Options{
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), DataDir: dir, ClientName: name,
	})
}
