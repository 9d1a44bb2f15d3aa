package parkingtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var feederFaultTests = []test{
	{"DeadFeedersRowsAreTakenOver", faultDead},
	{"LongRunKeepsItsLease", faultLongRun},
	{"LostLeaseEndsTheRun", faultLost},
	{"UncertainLeaseEndsTheRun", faultUncertain},
	{"UnsettledComesAgainUnchanged", faultUnsettled},
	{"OneBadRowHoldsNobodyBack", faultBadRow},
	{"StoreAway", faultStoreAway},
}

func faultDead(t *testing.T, h Harness) {
	park(t, h.Store, ordered("a", "o"), ordered("b", "o"))
	require.Len(t, lease(t, h.Store, 10, short), 1) // and dies
	suspects := make(chan bool, 10)
	r := &ran{}
	settle := h.settling(r)
	start(t, config(t, h.Reopen(t), func(ctx context.Context, l parking.Leased) error {
		suspects <- l.Suspect
		return settle(ctx, l)
	}))
	h.elapse(short)
	r.wait(t, 2)
	require.Equal(t, []string{"a", "b"}, r.all())
	require.True(t, receive(t, suspects))
	require.False(t, receive(t, suspects))
}

func faultLongRun(t *testing.T, h Harness) {
	const d = 3 * time.Second
	park(t, h.Store, row("a"))
	entered, release := make(chan string, 10), make(chan struct{})
	cfg := config(t, h.Store, blocked(h, entered, release))
	cfg.Lease = d
	start(t, cfg)
	receive(t, entered)
	rival := &ran{}
	start(t, config(t, h.Reopen(t), h.settling(rival)))
	time.Sleep(2 * d) // real time: the feeder has to keep up with it
	require.Empty(t, rival.all(), "the lease is extended while the row runs")
	close(release)
	gone(t, h.Store)
	require.Empty(t, rival.all())
}

func faultLost(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	cause := make(chan error, 1)
	var first atomic.Bool
	r := &ran{}
	settle := h.settling(r)
	cfg := config(t, h.Store, func(ctx context.Context, l parking.Leased) error {
		if !first.CompareAndSwap(false, true) {
			return settle(ctx, l)
		}
		// Somebody else has the row: the lease is given back behind the feeder's back, and taken.
		if err := h.Store.Release(ctx, l.Lease); err != nil {
			return err
		}
		other, err := h.Store.LeaseDue(ctx, scopes, 1, long)
		if err != nil || len(other) != 1 {
			return fmt.Errorf("not leased: %w", err)
		}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	cfg.Lease, cfg.Concurrency = time.Second, 1 // the feeder itself must not be the one that takes the row
	start(t, cfg)
	require.ErrorIs(t, receive(t, cause), parking.ErrLeaseLost, "the run goes on without its lease")
	require.Empty(t, r.all())
}

// away is a store whose connection fails for chosen calls.
type away struct {
	parking.Store
	lease, extend atomic.Bool
}

var errAway = errors.New("connection to the database lost")

// LeaseDue fails while lease is set.
func (a *away) LeaseDue(ctx context.Context, scopes []string, limit int, d time.Duration) ([]parking.Leased, error) {
	if a.lease.Load() {
		return nil, errAway
	}
	return a.Store.LeaseDue(ctx, scopes, limit, d)
}

// Extend fails while extend is set.
func (a *away) Extend(ctx context.Context, l parking.Lease, d time.Duration) error {
	if a.extend.Load() {
		return errAway
	}
	return a.Store.Extend(ctx, l, d)
}

// faultUncertain: a feeder that cannot extend ends its run before another one can have the row.
func faultUncertain(t *testing.T, h Harness) {
	const d = 2 * time.Second
	park(t, h.Store, row("a"))
	s := &away{Store: h.Store}
	s.extend.Store(true)
	ended := make(chan time.Duration, 10)
	cfg := config(t, s, func(ctx context.Context, _ parking.Leased) error {
		began := time.Now()
		<-ctx.Done()
		ended <- time.Since(began)
		return context.Cause(ctx)
	})
	cfg.Lease = d
	start(t, cfg)
	require.Less(t, receive(t, ended), d)
}

func faultUnsettled(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	was := only(t, h.Store, "a")
	var times atomic.Int64
	r := &ran{}
	settle := h.settling(r)
	start(t, config(t, h.Store, func(ctx context.Context, l parking.Leased) error {
		if l.Suspect || l.Attempts != was.Attempts || l.Error != was.Error {
			return fmt.Errorf("it was changed: %+v", l)
		}
		if times.Add(1) < 3 {
			return errAway
		}
		return settle(ctx, l)
	}))
	r.wait(t, 1)
	gone(t, h.Store)
}

func faultBadRow(t *testing.T, h Harness) {
	park(t, h.Store, row("bad"))
	for i := range 10 {
		park(t, h.Store, row(fmt.Sprint("good", i)))
	}
	r := &ran{}
	settle := h.settling(r)
	start(t, config(t, h.Store, func(ctx context.Context, l parking.Leased) error {
		if l.Key == "bad" {
			return errAway
		}
		return settle(ctx, l)
	}))
	r.wait(t, 10)
}

func faultStoreAway(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	s := &away{Store: h.Store}
	s.lease.Store(true)
	r := &ran{}
	start(t, config(t, s, h.settling(r)))
	require.Never(t, func() bool { return len(r.all()) > 0 }, 300*time.Millisecond, 20*time.Millisecond)
	s.lease.Store(false)
	r.wait(t, 1)
}
