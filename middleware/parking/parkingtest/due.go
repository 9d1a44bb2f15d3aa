package parkingtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var dueTests = []test{
	{"NotBeforeItIsDue", dueTime},
	{"OnlyItsScopes", dueScopes},
	{"OnlyWaitingRows", dueStates},
	{"HasALimit", dueLimit},
	{"OldestOfAnOrderingKey", dueOldest},
	{"NotBehindOneThatWaits", dueBehindWaiting},
	{"NotBehindOneThatHolds", dueBehindHolding},
	{"KeysInTheOrderOfTheSlice", dueSliceOrder},
	{"SeveralFeedersNeverShareARow", dueRivals},
	{"NextDue", dueNext},
}

func dueTime(t *testing.T, h Harness) {
	later := row("later")
	later.DueIn = time.Second
	park(t, h.Store, later, row("now"))
	parked := time.Now()
	require.Equal(t, []string{"now"}, leasedKeys(lease(t, h.Store, 10, long)))
	h.elapse(time.Second)
	require.Equal(t, "later", leaseEventually(t, h.Store).Key)
	if h.Advance == nil {
		require.Greater(t, time.Since(parked), 900*time.Millisecond)
	}
}

func dueScopes(t *testing.T, h Harness) {
	mine, other := row("mine"), row("other")
	other.Scope = "svc.other"
	park(t, h.Store, other, mine)
	require.Equal(t, []string{"mine"}, leasedKeys(lease(t, h.Store, 10, long)))
	none, err := h.Store.LeaseDue(t.Context(), nil, 10, long)
	require.NoError(t, err)
	require.Empty(t, none)
	both, err := h.Store.LeaseDue(t.Context(), []string{"svc.third", "svc.other", scope}, 10, long)
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, leasedKeys(both))
}

func dueStates(t *testing.T, h Harness) {
	doubt := row("doubt")
	doubt.State = parking.InDoubt
	park(t, h.Store, doubt, dead("dead", "r"))
	require.Empty(t, lease(t, h.Store, 10, long))
}

func dueLimit(t *testing.T, h Harness) {
	for i := range 7 {
		park(t, h.Store, row(fmt.Sprint(i)))
	}
	var got []string
	for _, want := range []int{3, 3, 1, 0} {
		rows := lease(t, h.Store, 3, long)
		require.Len(t, rows, want)
		got = append(got, leasedKeys(rows)...)
	}
	slices.Sort(got)
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6"}, got)
}

func dueOldest(t *testing.T, h Harness) {
	elsewhere := ordered("x", "o")
	elsewhere.Scope = "svc.other"
	park(t, h.Store, ordered("a", "o"), ordered("b", "o"), ordered("p", "p"), row("none-1"), row("none-2"), elsewhere)
	rows, err := h.Store.LeaseDue(t.Context(), []string{scope, "svc.other"}, 10, long)
	require.NoError(t, err)
	got := leasedKeys(rows)
	slices.Sort(got)
	require.Equal(t, []string{"a", "none-1", "none-2", "p", "x"}, got)
	require.Empty(t, lease(t, h.Store, 10, long), "nothing while the older row is leased")

	i := slices.IndexFunc(rows, func(l parking.Leased) bool { return l.Key == "a" })
	require.NoError(t, h.settle(t.Context(), rows[i]))
	require.Equal(t, []string{"b"}, leasedKeys(lease(t, h.Store, 10, long)))
}

func dueBehindWaiting(t *testing.T, h Harness) {
	first := ordered("a", "o")
	first.DueIn = time.Hour
	park(t, h.Store, first, ordered("b", "o"))
	require.Empty(t, lease(t, h.Store, 10, long))
}

func dueBehindHolding(t *testing.T, h Harness) {
	for _, state := range []parking.State{parking.Dead, parking.InDoubt} {
		for _, holds := range []bool{true, false} {
			key := fmt.Sprint(state, holds)
			r := ordered(key, key)
			r.State, r.Holds = state, holds
			park(t, h.Store, r, ordered("behind "+key, key))
		}
	}
	got := leasedKeys(lease(t, h.Store, 10, long))
	slices.Sort(got)
	require.Equal(t, []string{"behind deadfalse", "behind in_doubtfalse"}, got)

	holder := only(t, h.Store, "deadtrue")
	require.NoError(t, h.Store.Drop(t.Context(), holder.ID, alice))
	require.Equal(t, []string{"behind deadtrue"}, leasedKeys(lease(t, h.Store, 10, long)), "dropped, it holds nothing any more")
}

func dueSliceOrder(t *testing.T, h Harness) {
	var rows []parking.Row
	for i := range 6 {
		rows = append(rows, ordered(fmt.Sprint("z", 9-i), "o"), row(fmt.Sprint("other", i)))
	}
	park(t, h.Store, rows...)
	for i := range 6 {
		got := lease(t, h.Store, 100, long)
		n := slices.IndexFunc(got, func(l parking.Leased) bool { return l.OrderingKey == "o" })
		require.GreaterOrEqual(t, n, 0)
		require.Equal(t, fmt.Sprint("z", 9-i), got[n].Key)
		require.NoError(t, h.settle(t.Context(), got[n]))
	}
}

func dueRivals(t *testing.T, h Harness) {
	const n = 60
	var rows []parking.Row
	for i := range n {
		r := row(fmt.Sprint("k", i))
		if i%3 == 0 {
			r.OrderingKey = fmt.Sprint("o", i%9)
		}
		rows = append(rows, r)
	}
	park(t, h.Store, rows...)
	stores := []parking.Store{h.Store, h.Reopen(t), h.Store, h.Reopen(t)}
	var mu sync.Mutex
	seen := map[string]int{}
	errs := make([]error, len(stores))
	var wg sync.WaitGroup
	for i, s := range stores {
		wg.Go(func() {
			for idle := 0; idle < 5; {
				got, err := s.LeaseDue(t.Context(), scopes, 3, long)
				if err != nil && !h.contended(err) {
					errs[i] = err
					return
				}
				if len(got) == 0 {
					idle++
					time.Sleep(20 * time.Millisecond)
				}
				for _, l := range got {
					mu.Lock()
					seen[l.Key]++
					mu.Unlock()
					if err := h.settle(t.Context(), l); err != nil {
						errs[i] = err
						return
					}
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, seen, n)
	for key, times := range seen {
		require.Equal(t, 1, times, key)
	}
}

func (h Harness) contended(err error) bool { return h.Contended != nil && h.Contended(err) }

func dueNext(t *testing.T, h Harness) {
	_, waits, err := h.Store.NextDue(t.Context(), scopes)
	require.NoError(t, err)
	require.False(t, waits)

	other, later, farther := row("other"), row("later"), row("farther")
	other.Scope = "svc.other"
	later.DueIn, farther.DueIn = time.Hour, 2*time.Hour
	park(t, h.Store, farther, later, other, dead("dead", "r"))
	due, waits, err := h.Store.NextDue(t.Context(), scopes)
	require.NoError(t, err)
	require.True(t, waits)
	require.Greater(t, due, 55*time.Minute)
	require.LessOrEqual(t, due, time.Hour)

	park(t, h.Store, row("now"))
	due, waits, err = h.Store.NextDue(t.Context(), scopes)
	require.NoError(t, err)
	require.True(t, waits)
	require.LessOrEqual(t, due, time.Duration(0))
	_, waits, err = h.Store.NextDue(t.Context(), nil)
	require.NoError(t, err)
	require.False(t, waits)
}
