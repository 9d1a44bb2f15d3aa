package keystoretest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var orderingTests = []test{
	{"BehindAParkedPredecessor", orderingBehind},
	{"DuplicateIsNeverBehind", orderingDuplicate},
	{"HoldingRows", orderingHolds},
	{"CopyOfAWaitingMessage", orderingWaits},
	{"ParkedRowsKeepTheirOrder", orderingParked},
	{"BehindLeavesNoKey", orderingNoKey},
}

func orderedClaim(key, orderingKey string) keystore.Claim {
	c := claim(key)
	c.OrderingKey = orderingKey
	return c
}

func orderingBehind(t *testing.T, h Harness) {
	first := row(orderedClaim("a", "o"), parking.Waiting)
	first.DueIn = time.Hour
	park(t, h.Parking, first)

	otherScope := orderedClaim("b", "o")
	otherScope.Scope = "svc.other"
	for _, c := range []struct {
		claim keystore.Claim
		want  keystore.Outcome
	}{
		{orderedClaim("b", "o"), keystore.Behind},
		{orderedClaim("b", "O"), keystore.Fresh},
		{orderedClaim("b", "o "), keystore.Fresh},
		{orderedClaim("b", ""), keystore.Fresh},
		{otherScope, keystore.Fresh},
	} {
		require.Equal(t, c.want, probe(t, h.Store, c.claim).Outcome, "%+v", c.claim)
	}

	tx := begin(t, h.Store)
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{orderedClaim("c", "o"), orderedClaim("d", "p"), orderedClaim("e", "o"), orderedClaim("f", "p")})
	require.NoError(t, err)
	require.Equal(t, keystore.Behind, verdicts[0].Outcome)
	require.Equal(t, keystore.Fresh, verdicts[1].Outcome)
	require.Equal(t, keystore.Behind, verdicts[2].Outcome)
	require.Equal(t, keystore.Fresh, verdicts[3].Outcome, "messages of one group do not stand in each other's way")
}

func orderingDuplicate(t *testing.T, h Harness) {
	commit(t, h.Store, completed(orderedClaim("done", "o"), ""))
	park(t, h.Parking, row(orderedClaim("a", "o"), parking.Waiting))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, orderedClaim("done", "o")).Outcome)
}

func orderingHolds(t *testing.T, h Harness) {
	for _, s := range []parking.State{parking.Dead, parking.InDoubt} {
		for _, holds := range []bool{false, true} {
			key := string(s)
			if holds {
				key += " holds"
			}
			r := row(orderedClaim(key, key), s)
			r.Holds = holds
			park(t, h.Parking, r)
			want := keystore.Fresh
			if holds {
				want = keystore.Behind
			}
			require.Equal(t, want, probe(t, h.Store, orderedClaim("next "+key, key)).Outcome, key)
		}
	}
}

func orderingWaits(t *testing.T, h Harness) {
	park(t, h.Parking, row(claim("a"), parking.Waiting))
	park(t, h.Parking, row(orderedClaim("b", "o"), parking.Waiting))
	require.Equal(t, keystore.Waits, probe(t, h.Store, claim("a")).Outcome)
	require.Equal(t, keystore.Waits, probe(t, h.Store, orderedClaim("b", "o")).Outcome, "a copy is not behind itself")
	other := orderedClaim("b", "o")
	other.Fingerprint = printB
	require.Equal(t, keystore.Mismatch, probe(t, h.Store, other).Outcome)
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("A")).Outcome)
}

func orderingParked(t *testing.T, h Harness) {
	require.NoError(t, h.Parking.Park(t.Context(), []parking.Row{
		row(orderedClaim("a", "o"), parking.Waiting), row(orderedClaim("b", "o"), parking.Waiting),
	}))
	l := leaseRow(t, h.Parking, long)
	require.Equal(t, "a", l.Key)
	tx, c, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome, "the oldest row is behind nobody")
	d := completed(c, "")
	d.Settles = &l.Lease
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{d}))
	require.Equal(t, "b", leaseRow(t, h.Parking, long).Key)
	require.Equal(t, keystore.Behind, probe(t, h.Store, orderedClaim("c", "o")).Outcome)
}

func orderingNoKey(t *testing.T, h Harness) {
	park(t, h.Parking, row(orderedClaim("a", "o"), parking.Waiting))
	tx := begin(t, h.Store)
	c := orderedClaim("b", "o")
	require.Equal(t, keystore.Behind, claimOne(t, tx, c).Outcome)
	r := row(c, parking.Waiting)
	r.Reason = "behind"
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: c, Keep: true, Park: &r}}))
	require.Equal(t, keystore.Absent, state(t, h.Store, "b"))
	require.Equal(t, keystore.Waits, probe(t, h.Store, c).Outcome)
	require.Equal(t, "a", leaseRow(t, h.Parking, long).Key)
}
