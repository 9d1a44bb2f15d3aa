package parkingtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var redriveTests = []test{
	{"MarksWaiting", redriveWaiting},
	{"UnderANewKey", redriveAsKey},
	{"NotFound", redriveNotFound},
	{"RefusedWhereCompleted", redriveCompleted},
	{"BesideAWaitingRow", redriveBeside},
	{"KeepsItsPlaceInTheOrder", redriveOrder},
}

func redriveWaiting(t *testing.T, h Harness) {
	park(t, h.Store, dead("a", "panic"))
	was := only(t, h.Store, "a")
	require.NoError(t, h.Store.Redrive(t.Context(), was.ID, "", alice))
	got := only(t, h.Store, "a")
	require.Equal(t, parking.Waiting, got.State)
	require.True(t, got.Redriven)
	require.Equal(t, was.ID, got.ID)
	require.Equal(t, was.Payload, got.Payload)
	require.True(t, got.FirstAt.Equal(was.FirstAt))
	require.Len(t, got.History, 1)
	require.Equal(t, "redrive", got.History[0].What)
	require.Equal(t, "alice", got.History[0].By)
	require.Equal(t, "because", got.History[0].Why)
	require.False(t, got.History[0].At.IsZero())

	l := lease(t, h.Store, 10, long)
	require.Equal(t, []string{"a"}, leasedKeys(l), "it is due now")
	require.True(t, l[0].Redriven)
	require.Error(t, h.Store.Redrive(t.Context(), was.ID, "", alice), "a second redrive finds no dead row")
}

func redriveAsKey(t *testing.T, h Harness) {
	park(t, h.Store, dead("a", "payload-mismatch"))
	require.NoError(t, h.Store.Redrive(t.Context(), only(t, h.Store, "a").ID, "a-2", alice))
	l := lease(t, h.Store, 10, long)
	require.Equal(t, []string{"a-2"}, leasedKeys(l))
	require.Equal(t, printA, l[0].Fingerprint)
	require.NoError(t, h.settle(t.Context(), l[0]))
	require.Empty(t, list(t, h.Store, parking.Filter{}))
}

func redriveNotFound(t *testing.T, h Harness) {
	require.ErrorIs(t, h.Store.Redrive(t.Context(), 4711, "", alice), parking.ErrNotFound)
	park(t, h.Store, row("waiting"))
	require.Error(t, h.Store.Redrive(t.Context(), only(t, h.Store, "waiting").ID, "", alice))
	require.False(t, only(t, h.Store, "waiting").Redriven)
}

func redriveCompleted(t *testing.T, h Harness) {
	park(t, h.Store, row("a"))
	require.NoError(t, h.settle(t.Context(), lease(t, h.Store, 10, long)[0]))
	park(t, h.Store, dead("a", "panic"))
	r := only(t, h.Store, "a")
	err := h.Store.Redrive(t.Context(), r.ID, "", alice)
	var refusal *parking.Refusal
	require.ErrorAs(t, err, &refusal)
	require.NotEmpty(t, refusal.Why)
	require.Equal(t, parking.Dead, only(t, h.Store, "a").State)
	require.NoError(t, h.Store.Redrive(t.Context(), r.ID, "a-2", alice), "under another key it may run")
}

// redriveBeside: a copy of the message waits already; there is one waiting row afterwards.
func redriveBeside(t *testing.T, h Harness) {
	park(t, h.Store, dead("a", "panic"), row("a"))
	r := list(t, h.Store, parking.Filter{States: []parking.State{parking.Dead}})[0]
	if err := h.Store.Redrive(t.Context(), r.ID, "", alice); err != nil {
		var refusal *parking.Refusal
		require.ErrorAs(t, err, &refusal)
	}
	require.Len(t, list(t, h.Store, parking.Filter{States: []parking.State{parking.Waiting}}), 1)
}

func redriveOrder(t *testing.T, h Harness) {
	first := dead("a", "panic")
	first.OrderingKey, first.Holds = "o", true
	park(t, h.Store, first, ordered("b", "o"))
	require.Empty(t, lease(t, h.Store, 10, long))
	require.NoError(t, h.Store.Redrive(t.Context(), only(t, h.Store, "a").ID, "", alice))
	l := lease(t, h.Store, 10, long)
	require.Equal(t, []string{"a"}, leasedKeys(l), "it runs before those that it held")
	require.NoError(t, h.settle(t.Context(), l[0]))
	require.Equal(t, []string{"b"}, leasedKeys(lease(t, h.Store, 10, long)))
}
