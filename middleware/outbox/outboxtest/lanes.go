package outboxtest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/outbox"
)

var laneTests = []test{
	{"RenewalKeepsTokens", lanesRenewal},
	{"SharedFairly", lanesShared},
	{"SharedByThree", lanesSharedByThree},
	{"TakenOverAfterTheLease", lanesTakenOver},
	{"ReleasedAtOnce", lanesReleased},
	{"LostTokenChangesNothing", lanesLost},
	{"RivalsNeverShareALane", lanesRivals},
	{"EndedContext", lanesEndedContext},
}

func tokens(lanes []outbox.Lane) map[int]string {
	m := map[int]string{}
	for _, l := range lanes {
		m[l.Number] = l.Token
	}
	return m
}

func lanesRenewal(t *testing.T, h Harness) {
	first := lanes(t, h.Source, "a", long)
	require.Len(t, tokens(first), outbox.Lanes, "each lane once")
	for _, l := range first {
		require.NotEmpty(t, l.Token)
	}
	require.Equal(t, tokens(first), tokens(lanes(t, h.Source, "a", long)))
}

// share lets owners acquire in turn until nothing changes any more.
func share(t *testing.T, owners map[string]outbox.Source) map[string][]outbox.Lane {
	t.Helper()
	held := map[string][]outbox.Lane{}
	eventually(t, func() error {
		total := 0
		for name, src := range owners {
			got, err := src.AcquireLanes(t.Context(), name, long)
			if err != nil {
				return err
			}
			held[name] = got
			total += len(got)
		}
		fair := (outbox.Lanes + len(owners) - 1) / len(owners)
		for name, got := range held {
			if len(got) > fair {
				return fmt.Errorf("%s holds %d lanes, its fair share is %d", name, len(got), fair)
			}
		}
		if total != outbox.Lanes {
			return fmt.Errorf("%d lanes are held", total)
		}
		return nil
	})
	return held
}

func lanesShared(t *testing.T, h Harness) {
	other := h.Reopen(t)
	first := tokens(lanes(t, h.Source, "a", long))
	held := share(t, map[string]outbox.Source{"a": h.Source, "b": other})
	require.Len(t, held["a"], outbox.Lanes/2)
	require.Len(t, held["b"], outbox.Lanes/2)
	for _, l := range held["a"] {
		require.Equal(t, first[l.Number], l.Token, "lanes that an owner keeps keep their token")
	}
	for _, l := range held["b"] {
		require.NotEqual(t, first[l.Number], l.Token, "a lane that changes its owner gets a new token")
	}
}

func lanesSharedByThree(t *testing.T, h Harness) {
	owners := map[string]outbox.Source{"a": h.Source, "b": h.Reopen(t), "c": h.Reopen(t)}
	seen := map[int]string{}
	for name, got := range share(t, owners) {
		for _, l := range got {
			require.NotContains(t, seen, l.Number, "lane of two owners")
			seen[l.Number] = name
		}
	}
	require.Len(t, seen, outbox.Lanes)
}

func lanesTakenOver(t *testing.T, h Harness) {
	first := tokens(lanes(t, h.Source, "dead", long))
	other := h.Reopen(t)
	got, err := other.AcquireLanes(t.Context(), "b", long)
	require.NoError(t, err)
	require.Empty(t, got, "a lease that runs is respected")
	require.NoError(t, other.ReleaseLanes(t.Context(), "b"))
	require.Equal(t, first, tokens(lanes(t, h.Source, "dead", short)))
	h.elapse(short)
	eventually(t, func() error {
		got, err = other.AcquireLanes(t.Context(), "b", long)
		if err == nil && len(got) != outbox.Lanes {
			err = fmt.Errorf("%d lanes", len(got))
		}
		return err
	})
	for n, token := range tokens(got) {
		require.NotEqual(t, first[n], token)
	}
}

func lanesReleased(t *testing.T, h Harness) {
	lanes(t, h.Source, "a", long)
	require.NoError(t, h.Source.ReleaseLanes(t.Context(), "a"))
	require.NoError(t, h.Source.ReleaseLanes(t.Context(), "a"), "twice is no error")
	require.NoError(t, h.Source.ReleaseLanes(t.Context(), "nobody"))
	lanes(t, h.Reopen(t), "b", long)
}

func lanesLost(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 2)...)
	mine := lanes(t, h.Source, "a", long)
	got := fetch(t, h.Source, mine, 10)
	stale := got[0].lane
	require.NoError(t, h.Source.ReleaseLanes(t.Context(), "a"))
	owned := lanes(t, h.Reopen(t), "b", long)

	_, err := h.Source.Fetch(t.Context(), stale, 10)
	require.ErrorIs(t, err, outbox.ErrLaneLost)
	require.ErrorIs(t, h.Source.Done(t.Context(), stale, []int64{got[0].ID}), outbox.ErrLaneLost)
	require.ErrorIs(t, h.Source.Failed(t.Context(), stale, []outbox.Failure{{ID: got[0].ID, Reason: "late", Aside: true}}), outbox.ErrLaneLost)

	after := fetch(t, h.Source, owned, 10)
	require.Equal(t, []string{"k-000", "k-001"}, keys(after), "nothing was changed")
	require.Zero(t, after[0].Attempts)
}

// lanesRivals lets four owners acquire at the same moment, over and over: no lane ever has two holders of a valid token.
func lanesRivals(t *testing.T, h Harness) {
	const owners = 4
	sources := []outbox.Source{h.Source, h.Reopen(t), h.Source, h.Reopen(t)}
	for range 5 {
		var wg sync.WaitGroup
		held := make([][]outbox.Lane, owners)
		errs := make([]error, owners)
		for i := range owners {
			wg.Go(func() {
				held[i], errs[i] = sources[i].AcquireLanes(t.Context(), fmt.Sprint("owner-", i), long)
			})
		}
		wg.Wait()
		for i, got := range held {
			require.NoError(t, errs[i])
			for _, l := range got {
				_, err := sources[i].Fetch(t.Context(), l, 1)
				if err != nil {
					require.ErrorIs(t, err, outbox.ErrLaneLost)
				}
			}
		}
	}
	seen := map[int]bool{}
	byOwner := map[string]outbox.Source{}
	for i, src := range sources {
		byOwner[fmt.Sprint("owner-", i)] = src
	}
	for _, got := range share(t, byOwner) {
		for _, l := range got {
			require.False(t, seen[l.Number], "lane %d has two owners", l.Number)
			seen[l.Number] = true
		}
	}
	require.Len(t, seen, outbox.Lanes)
}

func lanesEndedContext(t *testing.T, h Harness) {
	owned := lanes(t, h.Source, "a", long)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Source.AcquireLanes(ctx, "b", long)
	require.Error(t, err)
	_, err = h.Source.Fetch(ctx, owned[0], 1)
	require.Error(t, err)
	require.NotErrorIs(t, err, outbox.ErrLaneLost)
	require.Equal(t, tokens(owned), tokens(lanes(t, h.Source, "a", long)), "the source still works")
}
