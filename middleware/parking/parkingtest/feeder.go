package parkingtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var feederTests = []test{
	{"RunsWhatIsDue", feederRuns},
	{"SeveralFeeders", feederSeveral},
	{"KeepsTheOrder", feederOrder},
	{"BoundsConcurrency", feederConcurrency},
	{"WokenBeforeItsPoll", feederWake},
	{"OnTimeWithoutAWake", feederNextDue},
	{"StopWaitsForWhatRuns", feederStopWaits},
	{"StopHandsBack", feederStopHandsBack},
}

// config is a feeder's configuration for tests: quick, and its log goes to the test.
func config(t *testing.T, s parking.Store, run func(context.Context, parking.Leased) error) parking.FeederConfig {
	return parking.FeederConfig{
		Store: s, Scopes: scopes, Run: run, Poll: 50 * time.Millisecond, Lease: 5 * time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

type running struct {
	*parking.Feeder
	stop func() error
}

// start runs a feeder until stop, or the end of the test.
func start(t *testing.T, cfg parking.FeederConfig) running {
	t.Helper()
	f, err := parking.NewFeeder(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("the feeder does not stop")
		}
	})
	t.Cleanup(func() { _ = stop() })
	return running{f, stop}
}

// gone waits until no row waits any more.
func gone(t *testing.T, s parking.Store) {
	t.Helper()
	eventually(t, func() error {
		rows, err := s.List(t.Context(), parking.Filter{States: []parking.State{parking.Waiting}})
		if err == nil && len(rows) > 0 {
			err = fmt.Errorf("%d rows wait", len(rows))
		}
		return err
	})
}

// settling runs rows by settling them, and notes them in r.
func (h Harness) settling(r *ran) func(context.Context, parking.Leased) error {
	return func(ctx context.Context, l parking.Leased) error {
		r.add(l.Key)
		return h.settle(ctx, l)
	}
}

func feederRuns(t *testing.T, h Harness) {
	other := row("other")
	other.Scope = "svc.other"
	late := row("late")
	late.DueIn = 700 * time.Millisecond
	park(t, h.Store, row("a"), row("b"), other, late, dead("dead", "r"))
	r := &ran{}
	f := start(t, config(t, h.Store, h.settling(r)))
	r.wait(t, 2)
	h.elapse(700 * time.Millisecond)
	r.wait(t, 3)
	require.NoError(t, f.stop())
	got := r.all()
	require.ElementsMatch(t, []string{"a", "b", "late"}, got)
	require.Equal(t, "late", got[2])
	require.Equal(t, []string{"other", "dead"}, keys(list(t, h.Store, parking.Filter{})))
}

func feederSeveral(t *testing.T, h Harness) {
	const n = 60
	var want []string
	for i := range n {
		r := row(fmt.Sprintf("k%02d", i))
		if i%2 == 0 {
			r.OrderingKey = fmt.Sprint("o", i%6)
		}
		park(t, h.Store, r)
		want = append(want, r.Key)
	}
	r := &ran{}
	var feeders []running
	for _, s := range []parking.Store{h.Store, h.Reopen(t), h.Reopen(t)} {
		cfg := config(t, s, h.settling(r))
		cfg.Lease = long // on a busy machine a short one ends, and its row runs again, which is right
		feeders = append(feeders, start(t, cfg))
	}
	gone(t, h.Store)
	for _, f := range feeders {
		require.NoError(t, f.stop())
	}
	got := r.all()
	slices.Sort(got)
	require.Equal(t, want, got, "each row was run once")
}

func feederOrder(t *testing.T, h Harness) {
	const keysN, each = 4, 8
	for i := range each {
		for k := range keysN {
			park(t, h.Store, ordered(fmt.Sprintf("o%d-%02d", k, i), fmt.Sprint("o", k)))
		}
	}
	r := &ran{}
	start(t, config(t, h.Store, h.settling(r)))
	start(t, config(t, h.Reopen(t), h.settling(r)))
	gone(t, h.Store)
	for k := range keysN {
		var got []string
		for _, key := range r.all() {
			if strings.HasPrefix(key, fmt.Sprintf("o%d-", k)) {
				got = append(got, key)
			}
		}
		require.Len(t, got, each)
		require.True(t, slices.IsSorted(got), "%v", got)
	}
}

func feederConcurrency(t *testing.T, h Harness) {
	for i := range 12 {
		park(t, h.Store, row(fmt.Sprint(i)))
	}
	var now, most atomic.Int64
	both := make(chan struct{})
	var once sync.Once
	cfg := config(t, h.Store, func(ctx context.Context, l parking.Leased) error {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		if n == 3 {
			once.Do(func() { close(both) })
		}
		select { // three run at once before any ends
		case <-both:
		case <-ctx.Done():
			return ctx.Err()
		}
		return h.settle(ctx, l)
	})
	cfg.Concurrency = 3
	start(t, cfg)
	gone(t, h.Store)
	require.EqualValues(t, 3, most.Load())
}

func feederWake(t *testing.T, h Harness) {
	r := &ran{}
	cfg := config(t, h.Store, h.settling(r))
	cfg.Poll = time.Hour
	f := start(t, cfg)
	for i := range 3 {
		park(t, h.Store, row(fmt.Sprint(i)))
		f.Wake()
		r.wait(t, i+1)
	}
}

func feederNextDue(t *testing.T, h Harness) {
	late := row("late")
	late.DueIn = 500 * time.Millisecond
	park(t, h.Store, late)
	r := &ran{}
	cfg := config(t, h.Store, h.settling(r))
	cfg.Poll = time.Hour
	start(t, cfg)
	r.wait(t, 1)
}

// blocked runs a row until release, or the end of its context.
func blocked(h Harness, entered chan<- string, release <-chan struct{}) func(context.Context, parking.Leased) error {
	return func(ctx context.Context, l parking.Leased) error {
		entered <- l.Key
		select {
		case <-release:
			return h.settle(ctx, l)
		case <-ctx.Done():
			return fmt.Errorf("run: %w", context.Cause(ctx))
		}
	}
}

func feederStopWaits(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	entered, release := make(chan string, 1), make(chan struct{})
	f := start(t, config(t, h.Store, blocked(h, entered, release)))
	receive(t, entered)
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	select {
	case <-stopped:
		require.Fail(t, "the feeder left a row behind")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	require.NoError(t, receive(t, stopped))
	require.Empty(t, list(t, h.Store, parking.Filter{}))
}

func feederStopHandsBack(t *testing.T, h Harness) {
	park(t, h.Store, row("a"), row("b"))
	entered := make(chan string, 2)
	cfg := config(t, h.Store, blocked(h, entered, nil))
	cfg.StopTimeout, cfg.Lease = 50*time.Millisecond, long
	f := start(t, cfg)
	receive(t, entered)
	receive(t, entered)
	require.NoError(t, f.stop())
	got := lease(t, h.Store, 10, long)
	require.Len(t, got, 2, "others need not wait for the lease")
	for _, l := range got {
		require.False(t, l.Suspect)
		require.Equal(t, 1, l.Attempts)
		require.Equal(t, "it did not work", l.Error)
	}
}
