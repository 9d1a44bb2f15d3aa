package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var relayTests = []test{
	{"PublishesAndRemoves", relayPublishes},
	{"BuildsTheMessage", relayMessage},
	{"OneOfAKeyInABatch", relayUnorderedBatch},
	{"OrderedBatch", relayOrderedBatch},
	{"WokenByACommit", relayWoken},
	{"DeliverAt", relayDeliverAt},
	{"StopFinishesAndReleases", relayStop},
	{"StopCutsAHangingPublish", relayStopCuts},
	{"ReportsStatus", relayStatus},
}

// config is a relay's configuration for tests: quick, and all its log goes to the test.
func (h Harness) config(t *testing.T, src outbox.Source, p outbox.Publisher, owner string) outbox.RelayConfig {
	return outbox.RelayConfig{
		Source: src, Publisher: p, Owner: owner, Logger: logger(t),
		Poll: max(h.Poll, 50*time.Millisecond), Lease: 5 * time.Second, BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	}
}

// logger writes to the test's log until the test ends.
func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// running is a relay that runs.
type running struct {
	stop func() error
}

// start runs a relay until stop, or the end of the test.
func start(t *testing.T, cfg outbox.RelayConfig) running {
	t.Helper()
	relay, err := outbox.NewRelay(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("the relay does not stop")
		}
	})
	t.Cleanup(func() { _ = stop() })
	return running{stop: stop}
}

func relayPublishes(t *testing.T, h Harness) {
	b := &broker{}
	want := append(plain("t", "p", 250), ordered("u", "k", 0, 30)...)
	h.commit(t, want...)
	var published atomic.Int64
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	cfg.Observer.Published = func(n int) { published.Add(int64(n)) }
	r := start(t, cfg)
	empty(t, h.Source)
	require.NoError(t, r.stop())

	require.ElementsMatch(t, recordKeys(want), b.keys())
	require.Len(t, b.taken(), len(want), "no copies where nothing fails")
	require.EqualValues(t, len(want), published.Load())
}

func relayMessage(t *testing.T, h Harness) {
	b := &broker{}
	rec := outbox.Record{
		Topic: "t", UUID: envelope.NewUUID(), Key: "the-key", OrderingKey: "the-order", Payload: []byte("\x00body"),
		Metadata: map[string]string{
			"trace": "x", envelope.KeyHeader: "the-key", envelope.OrderingKeyHeader: "the-order",
			envelope.DeliverAtHeader: time.Now().Add(-time.Hour).Format(time.RFC3339),
		},
	}
	bare := outbox.Record{Topic: "t", UUID: envelope.NewUUID(), Payload: []byte("{}")}
	h.commit(t, rec, bare)
	start(t, h.config(t, h.Source, &publisher{broker: b}, "a"))
	empty(t, h.Source)

	byUUID := map[string]sent{}
	for _, s := range b.taken() {
		byUUID[s.uuid] = s
	}
	got := byUUID[rec.UUID]
	require.Equal(t, "\x00body", got.payload)
	require.Equal(t, message.Metadata{
		"trace": "x", envelope.KeyHeader: "the-key", envelope.OrderingKeyHeader: "the-order",
	}, got.metadata)
	require.NotNil(t, byUUID[bare.UUID].metadata)
	require.Empty(t, byUUID[bare.UUID].metadata)
}

// batches notes how often one ordering key is in one batch.
func batches(counts *sync.Map) func(context.Context, string, []*message.Message) error {
	return func(_ context.Context, _ string, msgs []*message.Message) error {
		in := map[string]int{}
		for _, m := range msgs {
			in[m.Metadata.Get(envelope.OrderingKeyHeader)]++
		}
		for key, n := range in {
			if was, ok := counts.Load(key); !ok || was.(int) < n {
				counts.Store(key, n)
			}
		}
		return nil
	}
}

func relayUnorderedBatch(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 12)...)
	h.commit(t, ordered("t", "j", 0, 12)...)
	b, most := &broker{}, &sync.Map{}
	start(t, h.config(t, h.Source, &publisher{broker: b, before: batches(most)}, "a"))
	empty(t, h.Source)
	for _, key := range []string{"k", "j"} {
		n, _ := most.Load(key)
		require.Equal(t, 1, n)
		requireOrder(t, b, key, 12)
	}
}

func relayOrderedBatch(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 12)...)
	b, most := &broker{}, &sync.Map{}
	cfg := h.config(t, h.Source, &publisher{broker: b, ordered: true, before: batches(most)}, "a")
	cfg.OrderedBatch = true
	start(t, cfg)
	empty(t, h.Source)
	n, _ := most.Load("k")
	require.Greater(t, n, 1)
	requireOrder(t, b, "k", 12)
}

// requireOrder requires the first copies of the n messages of an ordering key in their order.
func requireOrder(t *testing.T, b *broker, orderingKey string, n int) {
	t.Helper()
	var got []string
	for _, s := range b.firsts() {
		if s.orderingKey == orderingKey {
			got = append(got, s.key)
		}
	}
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("%s-%03d", orderingKey, i)
	}
	require.Equal(t, want, got)
}

func relayWoken(t *testing.T, h Harness) {
	b := &broker{}
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	cfg.Poll = time.Hour
	cfg.Lease = time.Minute
	held := make(chan int, 16)
	cfg.Observer.Lanes = func(n int) { held <- n }
	start(t, cfg)
	require.Equal(t, outbox.Lanes, receive(t, held))
	for i := range 3 {
		h.commit(t, ordered("t", "k", i, 1)...)
		eventually(t, func() error {
			if n := len(b.taken()); n <= i {
				return fmt.Errorf("%d published", n)
			}
			return nil
		})
	}
}

func relayDeliverAt(t *testing.T, h Harness) {
	late := record("t", "late")
	due := time.Now().Add(1500 * time.Millisecond)
	late.DeliverAt = due
	h.commit(t, late, record("t", "now"))
	b := &broker{}
	start(t, h.config(t, h.Source, &publisher{broker: b, before: func(_ context.Context, _ string, msgs []*message.Message) error {
		for _, m := range msgs {
			if m.Metadata.Get(envelope.KeyHeader) == "late" && time.Now().Before(due) && h.Advance == nil {
				return errors.New("too early")
			}
		}
		return nil
	}}, "a"))
	eventually(t, func() error {
		if len(b.taken()) == 0 {
			return errors.New("nothing published")
		}
		return nil
	})
	h.elapse(1500 * time.Millisecond)
	empty(t, h.Source)
	require.Equal(t, []string{"now", "late"}, b.keys())
}

// relayStop stops the relay while a batch is at the broker: the batch is finished and marked, the lanes are free.
func relayStop(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	b := &broker{}
	entered, leave := make(chan struct{}), make(chan struct{})
	cfg := h.config(t, h.Source, &publisher{broker: b, before: func(ctx context.Context, _ string, _ []*message.Message) error {
		close(entered)
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}, "a")
	cfg.Lease = long
	r := start(t, cfg)
	receive(t, entered)
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	select {
	case <-stopped:
		require.Fail(t, "the relay left a batch behind")
	case <-time.After(100 * time.Millisecond):
	}
	close(leave)
	require.NoError(t, receive(t, stopped))
	require.Len(t, b.taken(), 1)
	empty(t, h.Source)
	lanes(t, h.Source, "b", long)
}

func relayStopCuts(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	entered := make(chan struct{})
	cfg := h.config(t, h.Source, &publisher{broker: &broker{}, before: func(ctx context.Context, _ string, _ []*message.Message) error {
		close(entered)
		<-ctx.Done()
		return fmt.Errorf("publish: %w", ctx.Err())
	}}, "a")
	cfg.StopTimeout = 100 * time.Millisecond
	r := start(t, cfg)
	receive(t, entered)
	require.NoError(t, r.stop())
	owned := lanes(t, h.Source, "b", long)
	got := fetch(t, h.Source, owned, 10)
	require.Len(t, got, 1, "it is due at once for the next relay")
	require.Zero(t, got[0].Attempts)
}

func relayStatus(t *testing.T, h Harness) {
	late := record("t", "late")
	late.DeliverAt = time.Now().Add(time.Hour)
	h.commit(t, late)
	got := make(chan outbox.Status, 100)
	cfg := h.config(t, h.Source, &publisher{broker: &broker{}}, "a")
	cfg.StatusEvery = 20 * time.Millisecond
	cfg.Observer.Status = func(s outbox.Status) {
		select {
		case got <- s:
		default:
		}
	}
	start(t, cfg)
	require.EqualValues(t, 1, receive(t, got).Delayed)
	require.EqualValues(t, 1, receive(t, got).Delayed)
}
