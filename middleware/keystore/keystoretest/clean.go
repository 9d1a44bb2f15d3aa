package keystoretest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var cleanTests = []test{
	{"ExpiredKeysGo", cleanExpired},
	{"ExpiredCountsUntilItIsRemoved", cleanStillCounts},
	{"F080SparesLiveWork", cleanSpares},
	{"HasALimit", cleanLimit},
	{"OnlyItsScope", cleanScope},
	{"RivalsAreExact", cleanRivals},
	{"F079UnderLoad", cleanUnderLoad},
}

// brief completes keys that are past their time at once.
func brief(t *testing.T, s keystore.Store, claims ...keystore.Claim) {
	t.Helper()
	for _, c := range claims {
		d := completed(c, `"r"`)
		d.Retention = time.Millisecond
		commit(t, s, d)
	}
}

func cleanAll(t *testing.T, h Harness) int {
	t.Helper()
	n, err := h.Store.Clean(t.Context(), scope, 1000)
	require.NoError(t, err)
	return n
}

func cleanExpired(t *testing.T, h Harness) {
	brief(t, h.Store, claim("old"))
	complete(t, h.Store, "young")
	for _, key := range []string{"old", "young"} {
		_, err := h.Store.Count(t.Context(), claim(key).ID, keystore.Failure{Class: "x"})
		require.NoError(t, err)
	}
	h.elapse(50 * time.Millisecond)
	require.Equal(t, 1, cleanAll(t, h))
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("old")).Outcome)
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("young")).Outcome)
	a, err := h.Store.Attempt(t.Context(), claim("old").ID)
	require.NoError(t, err)
	require.Zero(t, a, "the attempts go with the key")
	a, err = h.Store.Attempt(t.Context(), claim("young").ID)
	require.NoError(t, err)
	require.Equal(t, 1, a.Failures)
	require.Zero(t, cleanAll(t, h))
}

func cleanStillCounts(t *testing.T, h Harness) {
	brief(t, h.Store, claim("a"))
	h.elapse(50 * time.Millisecond)
	v := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Duplicate, v.Outcome)
	require.Equal(t, `"r"`, string(v.Record.Result))
	other := claim("a")
	other.Fingerprint = printB
	require.Equal(t, keystore.Mismatch, probe(t, h.Store, other).Outcome)
}

func cleanSpares(t *testing.T, h Harness) {
	acquire(t, h.Store, "owner", claim("running"), time.Millisecond)
	v := acquire(t, h.Store, "owner", claim("doubt"), long)
	doubt := row(claim("doubt"), parking.InDoubt)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{
		{Claim: held(claim("doubt"), v), State: keystore.InDoubt, Retention: time.Millisecond, Park: &doubt},
	}))
	dead := row(claim("dead"), parking.Dead)
	commit(t, h.Store, keystore.Completion{Claim: claim("dead"), State: keystore.Failed, Retention: time.Millisecond, Park: &dead})
	brief(t, h.Store, claim("parked"))
	park(t, h.Parking, row(claim("parked"), parking.Waiting))
	mismatch := claim("mismatch")
	brief(t, h.Store, mismatch)
	mismatch.Fingerprint = printB
	park(t, h.Parking, row(mismatch, parking.Dead))
	h.elapse(50 * time.Millisecond)

	require.Zero(t, cleanAll(t, h))
	for key, want := range map[string]keystore.State{
		"running": keystore.InProgress, "doubt": keystore.InDoubt, "dead": keystore.Failed,
		"parked": keystore.Completed, "mismatch": keystore.Completed,
	} {
		require.Equal(t, want, state(t, h.Store, key), key)
	}

	rows := parked(t, h.Parking, "dead")
	require.NoError(t, h.Parking.Drop(t.Context(), rows[0].ID, parking.Action{What: "drop", By: "alice"}))
	require.Equal(t, 1, cleanAll(t, h), "with its dead letter the key's protection goes")
}

func cleanLimit(t *testing.T, h Harness) {
	for i := range 7 {
		brief(t, h.Store, claim(fmt.Sprint("k", i)))
	}
	h.elapse(50 * time.Millisecond)
	for _, want := range []int{3, 3, 1, 0} {
		n, err := h.Store.Clean(t.Context(), scope, 3)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}

func cleanScope(t *testing.T, h Harness) {
	other := claim("a")
	other.Scope = "svc.other"
	brief(t, h.Store, claim("a"), other)
	h.elapse(50 * time.Millisecond)
	require.Equal(t, 1, cleanAll(t, h))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, other).Outcome)
}

// cleanRivals: cleaners of several replicas at once remove each key once and do not get in each other's way.
func cleanRivals(t *testing.T, h Harness) {
	const n = 40
	for i := range n {
		brief(t, h.Store, claim(fmt.Sprint("k", i)))
	}
	h.elapse(50 * time.Millisecond)
	removed := make([]int, 4)
	h.race(t, 4, func(i int, s keystore.Store) error {
		for range 10 {
			k, err := s.Clean(t.Context(), scope, 10)
			if err != nil && s.Classify(err) != keystore.FaultContention {
				return err
			}
			removed[i] += k
		}
		return nil
	})
	require.Equal(t, n, removed[0]+removed[1]+removed[2]+removed[3]+cleanAll(t, h))
}

// cleanUnderLoad: three cleaners work while two replicas complete keys of the same scope. No claim has to give way to a cleaner, all
// that is expired goes, in bounded batches, and nothing else does.
func cleanUnderLoad(t *testing.T, h Harness) {
	const expired, each, limit = 300, 60, 20
	for i := 0; i < expired; i += 50 {
		var claims []keystore.Claim
		for n := range 50 {
			claims = append(claims, claim(fmt.Sprint("old", i+n)))
		}
		brief(t, h.Store, claims...)
	}
	h.elapse(50 * time.Millisecond)
	var removed atomic.Int64
	h.race(t, 5, func(i int, s keystore.Store) error {
		if i < 2 {
			for n := range each {
				if err := completeOne(t.Context(), s, claim(fmt.Sprint("new", i, "-", n))); err != nil {
					return fmt.Errorf("a claim beside cleaners: %w", err)
				}
			}
			return nil
		}
		for {
			n, err := s.Clean(t.Context(), scope, limit)
			if err != nil || n == 0 {
				return err
			}
			if n > limit {
				return fmt.Errorf("%d keys in a batch of %d", n, limit)
			}
			removed.Add(int64(n))
		}
	})
	require.EqualValues(t, expired, removed.Load()+int64(cleanAll(t, h)))
	for i := range 2 {
		for n := range each {
			require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim(fmt.Sprint("new", i, "-", n))).Outcome)
		}
	}
}

// completeOne claims a key and completes it, for an hour.
func completeOne(ctx context.Context, s keystore.Store, c keystore.Claim) error {
	tx, err := s.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.Claim(ctx, []keystore.Claim{c}); err != nil {
		return err
	}
	return tx.Commit(ctx, []keystore.Completion{{Claim: c, State: keystore.Completed, Retention: time.Hour}})
}
