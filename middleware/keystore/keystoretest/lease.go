package keystoretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var leaseTests = []test{
	{"RivalsForARedrivenFailure", leaseRivalsRedriven},
	{"AnswersAsAClaimDoes", leaseVerdicts},
	{"CompleteWithRows", leaseCompleteRows},
	{"ClaimOfAKeyInProgress", leaseClaim},
}

func leaseRivalsRedriven(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	c := claim("a")
	c.Redriven, c.Parked = true, &l.Lease
	got := h.leasing().rivals(t, c)
	require.Equal(t, map[keystore.Outcome]int{keystore.Fresh: 1, keystore.Busy: 19}, got)
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
