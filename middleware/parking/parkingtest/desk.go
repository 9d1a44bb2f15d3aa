package parkingtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var deskTests = []test{
	{"ListByFilter", deskList},
	{"GetUnknown", deskGet},
	{"DropDeadOnly", deskDrop},
	{"Counts", deskCounts},
	{"Prune", deskPrune},
}

func deskList(t *testing.T, h Harness) {
	other := dead("b", "panic")
	other.Scope = "svc.other"
	doubt := row("c")
	doubt.State = parking.InDoubt
	park(t, h.Store, dead("a", "payload-mismatch"), other, doubt, row("d"), dead("e", "panic"))

	all := list(t, h.Store, parking.Filter{})
	require.Equal(t, []string{"a", "b", "c", "d", "e"}, keys(all), "oldest first")
	for _, c := range []struct {
		filter parking.Filter
		want   []string
	}{
		{parking.Filter{States: []parking.State{parking.Dead}}, []string{"a", "b", "e"}},
		{parking.Filter{States: []parking.State{parking.InDoubt, parking.Waiting}}, []string{"c", "d"}},
		{parking.Filter{Scope: "svc.other"}, []string{"b"}},
		{parking.Filter{Reason: "panic"}, []string{"b", "e"}},
		{parking.Filter{Reason: "panic", Scope: scope}, []string{"e"}},
		{parking.Filter{Key: "d"}, []string{"d"}},
		{parking.Filter{Key: "D"}, []string{}},
		{parking.Filter{Since: time.Hour}, []string{"a", "b", "c", "d", "e"}},
		{parking.Filter{AfterID: all[1].ID}, []string{"c", "d", "e"}},
		{parking.Filter{Limit: 2}, []string{"a", "b"}},
		{parking.Filter{AfterID: all[1].ID, Limit: 2}, []string{"c", "d"}},
	} {
		require.Equal(t, c.want, keys(list(t, h.Store, c.filter)), "%+v", c.filter)
	}
	h.elapse(50 * time.Millisecond)
	require.Empty(t, list(t, h.Store, parking.Filter{Since: time.Millisecond}))

	for i := range 120 {
		park(t, h.Store, dead(fmt.Sprint("many", i), "many"))
	}
	require.Len(t, list(t, h.Store, parking.Filter{}), 100)
	require.Len(t, list(t, h.Store, parking.Filter{Limit: 1000}), 125)
}

func deskGet(t *testing.T, h Harness) {
	_, err := h.Store.Get(t.Context(), 4711)
	require.ErrorIs(t, err, parking.ErrNotFound)
}

func deskDrop(t *testing.T, h Harness) {
	doubt := row("doubt")
	doubt.State = parking.InDoubt
	park(t, h.Store, dead("dead", "r"), row("waiting"), doubt)
	for _, key := range []string{"waiting", "doubt"} {
		require.ErrorIs(t, h.Store.Drop(t.Context(), only(t, h.Store, key).ID, alice), parking.ErrNotFound)
		only(t, h.Store, key)
	}
	r := only(t, h.Store, "dead")
	require.NoError(t, h.Store.Drop(t.Context(), r.ID, alice))
	require.ErrorIs(t, h.Store.Drop(t.Context(), r.ID, alice), parking.ErrNotFound)
	require.Empty(t, list(t, h.Store, parking.Filter{Key: "dead"}))
}

func deskCounts(t *testing.T, h Harness) {
	counts, err := h.Store.Counts(t.Context())
	require.NoError(t, err)
	require.Empty(t, counts)
	other := dead("b", "panic")
	other.Scope = "svc.other"
	park(t, h.Store, dead("a", "x"), dead("a", "y"), other, row("c"))
	h.elapse(20 * time.Millisecond)
	counts, err = h.Store.Counts(t.Context())
	require.NoError(t, err)
	got := map[string]int64{}
	for _, c := range counts {
		got[c.Scope+" "+string(c.State)] = c.Rows
		require.Positive(t, c.OldestAge)
		require.Less(t, c.OldestAge, time.Hour)
	}
	require.Equal(t, map[string]int64{scope + " dead": 2, "svc.other dead": 1, scope + " waiting": 1}, got)
}

func deskPrune(t *testing.T, h Harness) {
	doubt := row("doubt")
	doubt.State = parking.InDoubt
	park(t, h.Store, row("waiting"), doubt)
	for i := range 5 {
		park(t, h.Store, dead(fmt.Sprint("dead", i), "r"))
	}
	n, err := h.Store.Prune(t.Context(), time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	h.elapse(50 * time.Millisecond)
	for _, want := range []int{3, 2, 0} {
		n, err := h.Store.Prune(t.Context(), time.Millisecond, 3)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Equal(t, []string{"waiting", "doubt"}, keys(list(t, h.Store, parking.Filter{})))
}
