package parkingtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var leaseTests = []test{
	{"NobodyElseWhileItRuns", leaseHeld},
	{"AgainAfterItIsOver", leaseOver},
	{"Extended", leaseExtended},
	{"ExtendLost", leaseExtendLost},
	{"Postponed", leasePostponed},
	{"PostponedHoldsItsPlace", leasePostponedPlace},
	{"PostponeLost", leasePostponeLost},
	{"Released", leaseReleased},
	{"Settled", leaseSettled},
}

func leaseHeld(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	got := lease(t, h.Store, 10, long)
	require.Len(t, got, 1)
	require.Equal(t, got[0].ID, got[0].Lease.ID)
	require.NotEmpty(t, got[0].Lease.Token)
	require.False(t, got[0].Suspect)
	require.Equal(t, []byte("a"), got[0].Payload)
	require.Empty(t, lease(t, h.Reopen(t), 10, long))
}

func leaseOver(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	first := lease(t, h.Store, 10, short)[0]
	h.elapse(short)
	second := leaseEventually(t, h.Reopen(t))
	require.Equal(t, "a", second.Key)
	require.NotEqual(t, first.Lease.Token, second.Lease.Token)
	require.True(t, second.Suspect, "its first holder may have died of it")
	require.Equal(t, first.Attempts, second.Attempts)
}

func leaseExtended(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	const d = 4 * time.Second
	l := lease(t, h.Store, 10, d)[0]
	for range 4 {
		h.elapse(d / 3)
		require.NoError(t, h.Store.Extend(t.Context(), l.Lease, d))
		require.Empty(t, lease(t, h.Store, 10, long))
	}
	require.NoError(t, h.Store.Release(t.Context(), l.Lease))
	require.Equal(t, "a", leaseEventually(t, h.Store).Key)
}

// lost leases a row twice: the first lease is over.
func lost(t *testing.T, h Harness) (late, now parking.Leased) {
	t.Helper()
	park(t, h.Store, row("a"))
	late = lease(t, h.Store, 10, short)[0]
	h.elapse(short)
	return late, leaseEventually(t, h.Store)
}

func leaseExtendLost(t *testing.T, h Harness) {
	late, now := lost(t, h)
	require.ErrorIs(t, h.Store.Extend(t.Context(), late.Lease, long), parking.ErrLeaseLost)
	require.NoError(t, h.Store.Extend(t.Context(), now.Lease, long))
	require.ErrorIs(t, h.Store.Extend(t.Context(), parking.Lease{ID: 4711, Token: "x"}, long), parking.ErrLeaseLost)
	require.ErrorIs(t, h.settle(t.Context(), late), parking.ErrLeaseLost)
	require.NoError(t, h.settle(t.Context(), now))
}

func leasePostponed(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	was := only(t, h.Store, "a")
	l := lease(t, h.Store, 10, long)[0]
	change := parking.Row{Attempts: 5, Reason: "timeout", Class: "transient", Error: "again\x00"}
	require.NoError(t, h.Store.Postpone(t.Context(), l.Lease, time.Second, change))
	require.Empty(t, lease(t, h.Store, 10, long))

	got := only(t, h.Store, "a")
	require.Equal(t, 5, got.Attempts)
	require.Equal(t, "timeout", got.Reason)
	require.Equal(t, "again\x00", got.Error)
	require.Equal(t, was.UUID, got.UUID)
	require.Equal(t, was.Payload, got.Payload)
	require.Equal(t, was.Metadata, got.Metadata)
	require.Equal(t, was.Fingerprint, got.Fingerprint)
	require.Equal(t, parking.Waiting, got.State)
	require.True(t, got.FirstAt.Equal(was.FirstAt))
	require.WithinDuration(t, got.LastAt.Add(time.Second), got.DueAt, 100*time.Millisecond)

	h.elapse(time.Second)
	again := leaseEventually(t, h.Store)
	require.False(t, again.Suspect, "it was given back")
	require.ErrorIs(t, h.Store.Extend(t.Context(), l.Lease, long), parking.ErrLeaseLost)
}

func leasePostponedPlace(t *testing.T, h Harness) {
	park(t, h.Store, ordered("a", "o"), ordered("b", "o"))
	l := lease(t, h.Store, 10, long)[0]
	require.Equal(t, "a", l.Key)
	require.NoError(t, h.Store.Postpone(t.Context(), l.Lease, time.Hour, l.Row))
	require.Empty(t, lease(t, h.Store, 10, long), "the younger one stays behind")
}

func leasePostponeLost(t *testing.T, h Harness) {
	late, now := lost(t, h)
	require.ErrorIs(t, h.Store.Postpone(t.Context(), late.Lease, time.Hour, parking.Row{Attempts: 99, Reason: "x"}), parking.ErrLeaseLost)
	require.Equal(t, 1, only(t, h.Store, "a").Attempts)
	require.NoError(t, h.Store.Extend(t.Context(), now.Lease, long))
	require.NoError(t, h.settle(t.Context(), now))
	require.ErrorIs(t, h.Store.Postpone(t.Context(), now.Lease, 0, now.Row), parking.ErrLeaseLost, "the row is gone")
}

func leaseReleased(t *testing.T, h Harness) {
	late, now := lost(t, h)
	require.NoError(t, h.Store.Release(t.Context(), late.Lease), "a lost lease is no error")
	require.Empty(t, lease(t, h.Store, 10, long), "and changes nothing")
	require.NoError(t, h.Store.Release(t.Context(), now.Lease))
	again := lease(t, h.Store, 10, long)
	require.Len(t, again, 1, "it is due at once")
	require.False(t, again[0].Suspect)
	require.Equal(t, now.Attempts, again[0].Attempts)
	require.NotEqual(t, now.Lease.Token, again[0].Lease.Token)
}

func leaseSettled(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	l := lease(t, h.Store, 10, long)[0]
	require.NoError(t, h.settle(t.Context(), l))
	_, err := h.Store.Get(t.Context(), l.ID)
	require.ErrorIs(t, err, parking.ErrNotFound)
	require.ErrorIs(t, h.Store.Extend(t.Context(), l.Lease, long), parking.ErrLeaseLost)
	require.NoError(t, h.Store.Release(t.Context(), l.Lease))
}
