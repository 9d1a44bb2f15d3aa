package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var relayFaultTests = []test{
	{"F056KilledBeforeMarking", faultKilledBeforeMarking},
	{"KilledAfterReading", faultKilledAfterReading},
	{"KilledAfterMarking", faultKilledAfterMarking},
	{"TwoRelaysKeepTheOrder", faultTwoRelays},
	{"UncertainLeaseStopsPublishing", faultUncertainLease},
	{"SourceAwayAtTheStart", faultSourceAway},
	{"MarkIsTriedAgain", faultMarkAgain},
}

// crashLease is the lease of relays that die: the next one waits for it.
const crashLease = time.Second

var errKilled = errors.New("killed")

// crash runs a relay that dies at the given point, the first time that it gets there after skip times. Where the clock can be moved, its lease is
// over then.
func (h Harness) crash(t *testing.T, cfg outbox.RelayConfig, point faultpoint.Point, skip int) {
	t.Helper()
	var passed atomic.Int64
	cfg.Fault = func(_ context.Context, at faultpoint.Point) error {
		if at == point && passed.Add(1) > int64(skip) {
			return errKilled
		}
		return nil
	}
	relay, err := outbox.NewRelay(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.ErrorIs(t, relay.Run(ctx), errKilled)
	if h.Advance != nil {
		h.Advance(cfg.Lease)
	}
}

func faultKilledBeforeMarking(t *testing.T, h Harness) {
	const rows, batch, kills = 400, 20, 10
	var want []outbox.Record
	want = append(want, plain("t", "p", rows/2)...)
	for k := range 10 {
		want = append(want, ordered("t", fmt.Sprint("k", k), 0, rows/20)...)
	}
	h.commit(t, want...)
	b := &broker{}
	unmarked := 0
	for i := range kills {
		owner := fmt.Sprint("relay-", i)
		cfg := h.config(t, h.Source, &publisher{broker: b, relay: owner}, owner)
		cfg.Lease, cfg.Batch = crashLease, batch
		h.crash(t, cfg, faultpoint.PublishedBeforeMarked, i%3)
		s, err := h.Source.Status(t.Context())
		require.NoError(t, err)
		require.Positive(t, s.Pending, "the kills come too late to show anything")
		before := unmarked
		unmarked = len(b.firsts()) - (rows - int(s.Pending))
		require.LessOrEqual(t, unmarked-before, batch, "one kill leaves more than a batch to be copied")
	}
	require.Positive(t, unmarked, "no kill hit a published batch")
	start(t, h.config(t, h.Source, &publisher{broker: b, relay: "last"}, "last"))
	empty(t, h.Source)

	require.ElementsMatch(t, recordKeys(want), b.keys())
	require.LessOrEqual(t, len(b.taken())-rows, kills*batch)
	for k := range 10 {
		requireOrder(t, b, fmt.Sprint("k", k), rows/20)
	}
}

func faultKilledAfterReading(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 20)...)
	b := &broker{}
	cfg := h.config(t, h.Source, &publisher{broker: b}, "dead")
	cfg.Lease, cfg.Workers = crashLease, 1
	h.crash(t, cfg, faultpoint.OutboxRead, 0)
	require.Empty(t, b.taken())
	start(t, h.config(t, h.Source, &publisher{broker: b}, "next"))
	empty(t, h.Source)
	require.Len(t, b.taken(), 20)
}

func faultKilledAfterMarking(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 20)...)
	b := &broker{}
	cfg := h.config(t, h.Source, &publisher{broker: b}, "dead")
	cfg.Lease, cfg.Workers = crashLease, 1
	h.crash(t, cfg, faultpoint.Marked, 0)
	require.NotEmpty(t, b.taken())
	start(t, h.config(t, h.Source, &publisher{broker: b}, "next"))
	empty(t, h.Source)
	require.Len(t, b.taken(), 20, "what was marked is not repeated")
}

// faultTwoRelays lets two relays share the lanes while a third comes and is killed, a fourth comes and is stopped, and the
// broker refuses now and then.
func faultTwoRelays(t *testing.T, h Harness) {
	const orderingKeys = 12
	b := &broker{}
	var n int
	b.rule(func(string, *message.Message) error {
		if n++; n%13 == 0 {
			return errors.New("not now")
		}
		return nil
	})
	relay := func(src outbox.Source, name string) outbox.RelayConfig {
		cfg := h.config(t, src, &publisher{broker: b, relay: name}, name)
		cfg.Batch, cfg.Lease, cfg.MaxAttempts = 10, time.Second, 1000
		return cfg
	}
	start(t, relay(h.Source, "a"))
	start(t, relay(h.Reopen(t), "b"))
	third := h.Reopen(t)
	guests := make(chan error, 1)
	go func() { guests <- visit(relay(third, "killed"), relay(third, "stopped"), b) }()

	each, over := 0, false
	for deadline := time.Now().Add(patience); !over && time.Now().Before(deadline); each++ {
		for k := range orderingKeys {
			h.commit(t, ordered("t", fmt.Sprint("k", k), each, 1)...)
		}
		select {
		case err := <-guests:
			require.NoError(t, err)
			over = true
		default:
		}
	}
	require.True(t, over, "the guests got no lane")
	empty(t, h.Source)
	for k := range orderingKeys {
		requireOrder(t, b, fmt.Sprint("k", k), each)
	}
	require.Subset(t, b.relays(), []string{"a", "b", "killed", "stopped"}, "each relay published something")
}

// visit runs a relay until it is killed before marking, and then another one until it has published.
func visit(killed, stopped outbox.RelayConfig, b *broker) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	killed.Fault = func(_ context.Context, at faultpoint.Point) error {
		if at == faultpoint.PublishedBeforeMarked && slices.Contains(b.relays(), killed.Owner) {
			return errKilled
		}
		return nil
	}
	relay, err := outbox.NewRelay(killed)
	if err != nil {
		return err
	}
	if err := relay.Run(ctx); !errors.Is(err, errKilled) {
		return fmt.Errorf("not killed: %w", err)
	}
	if relay, err = outbox.NewRelay(stopped); err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for run.Err() == nil && !slices.Contains(b.relays(), stopped.Owner) {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	}()
	return relay.Run(run)
}

// cut is a source whose database goes away for chosen calls.
type cut struct {
	outbox.Source
	lanes, done atomic.Bool
}

var errCut = errors.New("connection to the database lost")

// AcquireLanes fails while lanes is set.
func (c *cut) AcquireLanes(ctx context.Context, owner string, lease time.Duration) ([]outbox.Lane, error) {
	if c.lanes.Load() {
		return nil, errCut
	}
	lanes, err := c.Source.AcquireLanes(ctx, owner, lease)
	if c.lanes.Load() {
		return nil, errCut // its answer is lost
	}
	return lanes, err
}

// Done fails while done is set.
func (c *cut) Done(ctx context.Context, lane outbox.Lane, ids []int64) error {
	if c.done.Load() {
		return errCut
	}
	return c.Source.Done(ctx, lane, ids)
}

// faultUncertainLease cuts a relay off from its source while a batch is at the broker, and the next wave of it is still to come: it
// publishes nothing any more when another relay may have the lanes.
func faultUncertainLease(t *testing.T, h Harness) {
	const lease = 2 * time.Second
	b := &broker{}
	src := &cut{Source: h.Source}
	var began time.Time
	entered, ended := make(chan struct{}), make(chan time.Duration, 1)
	first := &publisher{broker: b, relay: "cut-off", before: func(ctx context.Context, _ string, _ []*message.Message) error {
		if !began.IsZero() {
			return nil
		}
		began = time.Now()
		close(entered)
		src.lanes.Store(true)
		<-ctx.Done()
		ended <- time.Since(began)
		return nil // the broker took it all the same
	}}
	h.commit(t, ordered("t", "k", 0, 5)...)
	cfg := h.config(t, src, first, "cut-off")
	cfg.Lease = lease
	start(t, cfg)
	receive(t, entered)
	require.Less(t, receive(t, ended), lease, "it goes on publishing when its lease may be over")
	if h.Advance != nil {
		h.Advance(lease)
	}
	second := h.config(t, h.Reopen(t), &publisher{broker: b, relay: "next"}, "next")
	start(t, second)
	empty(t, h.Source)
	for i, s := range b.taken() {
		require.Equal(t, i > 0, s.relay == "next", "message %d comes from %s", i, s.relay)
	}
	requireOrder(t, b, "k", 5)
}

func faultSourceAway(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	src := &cut{Source: h.Source}
	src.lanes.Store(true)
	b := &broker{}
	cfg := h.config(t, src, &publisher{broker: b}, "a")
	cfg.Lease = time.Second
	start(t, cfg)
	require.Never(t, func() bool { return len(b.taken()) > 0 }, 300*time.Millisecond, 20*time.Millisecond)
	src.lanes.Store(false)
	empty(t, h.Source)
}

// faultMarkAgain: a database that is away for a moment costs no copies.
func faultMarkAgain(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 10)...)
	src := &cut{Source: h.Source}
	src.done.Store(true)
	b := &broker{}
	start(t, h.config(t, src, &publisher{broker: b}, "a"))
	eventually(t, func() error {
		if len(b.taken()) == 0 {
			return errors.New("nothing published")
		}
		return nil
	})
	src.done.Store(false)
	empty(t, h.Source)
	require.Len(t, b.taken(), 10)
}
