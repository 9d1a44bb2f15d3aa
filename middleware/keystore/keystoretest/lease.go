package keystoretest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var leaseTests = []test{
	{"Acquire", leaseAcquire},
	{"SameOwnerAsksAgain", leaseSameOwner},
	{"OneOfTwentyRivals", leaseRivals},
	{"RivalsForALeaseThatIsOver", leaseRivalsOver},
	{"RivalsForARedrivenFailure", leaseRivalsRedriven},
	{"AnswersAsAClaimDoes", leaseVerdicts},
	{"SeveralInOneCall", leaseSeveral},
	{"CompleteKeepsTheResult", leaseComplete},
	{"CompleteWithRows", leaseCompleteRows},
	{"ReleaseLeavesNoKey", leaseRelease},
	{"RenewalHoldsALongRun", leaseRenewal},
	{"ClaimOfAKeyInProgress", leaseClaim},
}

// acquire asks for one lease.
func acquire(t *testing.T, s keystore.Leasing, owner string, c keystore.Claim, lease time.Duration) keystore.Verdict {
	t.Helper()
	verdicts, err := s.Acquire(t.Context(), owner, []keystore.Claim{c}, lease)
	require.NoError(t, err)
	require.Len(t, verdicts, 1)
	return verdicts[0]
}

// takeOver acquires the key once the lease of somebody else is over.
func takeOver(t *testing.T, h Harness, owner string, c keystore.Claim) keystore.Verdict {
	t.Helper()
	if h.Advance != nil {
		h.Advance(short)
	}
	var v keystore.Verdict
	eventually(t, func() error {
		if v = acquire(t, h.Store, owner, c, long); v.Outcome != keystore.TakenOver {
			return fmt.Errorf("outcome %q", v.Outcome)
		}
		return nil
	})
	return v
}

// held is a claim by the token of a lease.
func held(c keystore.Claim, v keystore.Verdict) keystore.Claim {
	c.Token = v.Token
	return c
}

func leaseAcquire(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.NotEmpty(t, v.Token)
	require.Equal(t, keystore.InProgress, state(t, h.Store, "a"))

	busy := acquire(t, h.Reopen(t).Store, "two", claim("a"), long)
	require.Equal(t, keystore.Busy, busy.Outcome)
	require.Empty(t, busy.Token)
	require.Equal(t, "one", busy.Record.Owner)
	require.Greater(t, busy.Record.LeaseLeft, long/2)
	require.LessOrEqual(t, busy.Record.LeaseLeft, long)
	require.WithinDuration(t, time.Now(), busy.Record.FirstAt, time.Minute)
}

func leaseSameOwner(t *testing.T, h Harness) {
	first := acquire(t, h.Store, "one", claim("a"), short)
	again := acquire(t, h.Store, "one", claim("a"), long)
	require.Equal(t, keystore.Fresh, again.Outcome)
	require.Equal(t, first.Token, again.Token)
	h.elapse(short)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", claim("a"), long).Outcome, "asking again prolonged the lease")
}

func leaseRivals(t *testing.T, h Harness) {
	got := h.rivals(t, claim("a"), claim("b"))
	require.Equal(t, map[keystore.Outcome]int{keystore.Fresh: 2, keystore.Busy: 38}, got)
}

func leaseRivalsOver(t *testing.T, h Harness) {
	acquire(t, h.Store, "dead", claim("a"), time.Millisecond)
	h.elapse(20 * time.Millisecond)
	got := h.rivals(t, claim("a"))
	require.Equal(t, map[keystore.Outcome]int{keystore.TakenOver: 1, keystore.Busy: 19}, got)
}

func leaseRivalsRedriven(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	c := claim("a")
	c.Redriven, c.Parked = true, &l.Lease
	got := h.rivals(t, c)
	require.Equal(t, map[keystore.Outcome]int{keystore.Fresh: 1, keystore.Busy: 19}, got)
}

// rivals lets twenty owners acquire the claims at once and counts the outcomes.
func (h Harness) rivals(t *testing.T, claims ...keystore.Claim) map[keystore.Outcome]int {
	t.Helper()
	var mu sync.Mutex
	outcomes := map[keystore.Outcome]int{}
	h.race(t, 20, func(i int, s keystore.Store) error {
		for {
			verdicts, err := s.Acquire(t.Context(), fmt.Sprint("owner-", i), claims, long)
			if err != nil && s.Classify(err) == keystore.FaultContention {
				continue
			}
			mu.Lock()
			defer mu.Unlock()
			for _, v := range verdicts {
				outcomes[v.Outcome]++
			}
			return err
		}
	})
	return outcomes
}

func leaseVerdicts(t *testing.T, h Harness) {
	commit(t, h.Store, completed(claim("completed"), `"r"`))
	dead := row(claim("failed"), parking.Dead)
	commit(t, h.Store, keystore.Completion{Claim: claim("failed"), State: keystore.Failed, Retention: retention, Park: &dead})
	doubt := row(claim("in doubt"), parking.InDoubt)
	commit(t, h.Store, keystore.Completion{Claim: claim("in doubt"), State: keystore.InDoubt, Park: &doubt})
	park(t, h.Parking, row(orderedClaim("waiting", "o"), parking.Waiting))
	mismatch := claim("completed")
	mismatch.Fingerprint = printB

	for _, c := range []struct {
		claim keystore.Claim
		want  keystore.Outcome
	}{
		{claim("completed"), keystore.Duplicate},
		{mismatch, keystore.Mismatch},
		{claim("failed"), keystore.Rejected},
		{claim("in doubt"), keystore.Doubtful},
		{orderedClaim("waiting", "o"), keystore.Waits},
		{orderedClaim("behind", "o"), keystore.Behind},
	} {
		v := acquire(t, h.Store, "owner", c.claim, long)
		require.Equal(t, c.want, v.Outcome, c.claim.Key)
		require.Empty(t, v.Token, c.claim.Key)
	}
	require.Equal(t, `"r"`, string(acquire(t, h.Store, "owner", claim("completed"), long).Record.Result))
	require.Equal(t, keystore.Absent, state(t, h.Store, "behind"))
}

func leaseSeveral(t *testing.T, h Harness) {
	complete(t, h.Store, "done")
	verdicts, err := h.Store.Acquire(t.Context(), "owner", []keystore.Claim{claim("z"), claim("done"), claim("a")}, long)
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
	require.Equal(t, keystore.Duplicate, verdicts[1].Outcome)
	require.Equal(t, keystore.Fresh, verdicts[2].Outcome)
	require.NotEqual(t, verdicts[0].Token, verdicts[2].Token)
	require.NoError(t, h.Store.Renew(t.Context(), claim("z").ID, verdicts[0].Token, long))
	require.ErrorIs(t, h.Store.Renew(t.Context(), claim("z").ID, verdicts[2].Token, long), keystore.ErrLeaseLost)
}

func leaseComplete(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), v), `{"sent":true}`)}))
	again := acquire(t, h.Store, "two", claim("a"), long)
	require.Equal(t, keystore.Duplicate, again.Outcome)
	require.Equal(t, `{"sent":true}`, string(again.Record.Result))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("a")).Outcome)
	require.ErrorIs(t, h.Store.Renew(t.Context(), claim("a").ID, v.Token, long), keystore.ErrLeaseLost)
}

func leaseCompleteRows(t *testing.T, h Harness) {
	doubt, failed := acquire(t, h.Store, "one", claim("doubt"), long), acquire(t, h.Store, "one", claim("failed"), long)
	inDoubt, dead := row(claim("doubt"), parking.InDoubt), row(claim("failed"), parking.Dead)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{
		{Claim: held(claim("doubt"), doubt), State: keystore.InDoubt, Park: &inDoubt},
		{Claim: held(claim("failed"), failed), State: keystore.Failed, Retention: retention, Park: &dead},
	}))
	require.Equal(t, keystore.Doubtful, probe(t, h.Store, claim("doubt")).Outcome)
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("failed")).Outcome)
	require.Len(t, parked(t, h.Parking, "doubt"), 1)
	require.Len(t, parked(t, h.Parking, "failed"), 1)

	waits := acquire(t, h.Store, "one", claim("waits"), long)
	r := row(claim("waits"), parking.Waiting)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{
		{Claim: held(claim("waits"), waits), State: keystore.Absent, Park: &r},
	}))
	require.Equal(t, keystore.Absent, state(t, h.Store, "waits"))
	require.Len(t, parked(t, h.Parking, "waits"), 1)
}

func leaseRelease(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, "not the token"))
	require.Equal(t, keystore.InProgress, state(t, h.Store, "a"), "a lost lease is no error and changes nothing")
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, v.Token))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	next := acquire(t, h.Store, "two", claim("a"), long)
	require.Equal(t, keystore.Fresh, next.Outcome, "nobody takes over what was given up")
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, v.Token))
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "three", claim("a"), long).Outcome)
}

// leaseRenewal holds a key for longer than its lease by renewing it.
func leaseRenewal(t *testing.T, h Harness) {
	const lease = 4 * time.Second
	v := acquire(t, h.Store, "one", claim("a"), lease)
	other := h.Reopen(t).Store
	for range 4 {
		h.elapse(lease / 3)
		require.NoError(t, h.Store.Renew(t.Context(), claim("a").ID, v.Token, lease))
		require.Equal(t, keystore.Busy, acquire(t, other, "two", claim("a"), long).Outcome)
	}
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), v), "")}))
}

// leaseClaim: a transactional claim meets a key that is held by lease. Whether it takes over a lease that is over is the
// store's to say; while it is alive it never does.
func leaseClaim(t *testing.T, h Harness) {
	acquire(t, h.Store, "one", claim("a"), long)
	v := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Busy, v.Outcome)
	require.Greater(t, v.Record.LeaseLeft, long/2)
	require.Equal(t, "one", v.Record.Owner)
	require.Equal(t, keystore.InProgress, v.Record.State)
}
