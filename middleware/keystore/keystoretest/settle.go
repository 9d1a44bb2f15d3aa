package keystoretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var settleTests = []test{
	{"KeepLeavesTheKey", settleKeep},
	{"FailedWithItsDeadLetter", settleFailed},
	{"InDoubtWithItsRow", settleInDoubt},
	{"DeadLetterWithoutValidKey", settleKeyless},
	{"RowGoesWithTheEffect", settleRow},
	{"RowIsReplaced", settleReplaced},
	{"LostRowCommitsNothing", settleLost},
	{"RowOfADuplicateGoes", settleDuplicate},
}

func settleKeep(t *testing.T, h Harness) {
	commit(t, h.Store, completed(claim("a"), `"first"`))
	other := claim("a")
	other.Fingerprint = printB
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Mismatch, claimOne(t, tx, other).Outcome)
	r := row(other, parking.Dead)
	r.Reason = "payload-mismatch"
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: other, Keep: true, Park: &r}}))

	v := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Duplicate, v.Outcome)
	require.Equal(t, `"first"`, string(v.Record.Result))
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, "payload-mismatch", rows[0].Reason)
}

func settleFailed(t *testing.T, h Harness) {
	r := row(claim("a"), parking.Dead)
	commit(t, h.Store, keystore.Completion{Claim: claim("a"), State: keystore.Failed, Retention: retention, Park: &r, Owner: "me"})
	require.Equal(t, keystore.Failed, state(t, h.Store, "a"))
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("a")).Outcome)
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, parking.Dead, rows[0].State)
}

func settleInDoubt(t *testing.T, h Harness) {
	r := row(claim("a"), parking.InDoubt)
	commit(t, h.Store, keystore.Completion{Claim: claim("a"), State: keystore.InDoubt, Retention: retention, Park: &r})
	require.Equal(t, keystore.Doubtful, probe(t, h.Store, claim("a")).Outcome)
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, parking.InDoubt, rows[0].State)
	leased, err := h.Parking.LeaseDue(t.Context(), []string{scope}, 10, long)
	require.NoError(t, err)
	require.Empty(t, leased, "what is in doubt is never run")
}

func settleKeyless(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	first, second := row(claim(""), parking.Dead), row(claim("bad\x00\xff"), parking.Dead)
	first.Reason, second.Reason = "key-missing", "key-control-character"
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Park: &first}, {Park: &second}}))
	rows, err := h.Parking.List(t.Context(), parking.Filter{})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Empty(t, rows[0].Key)
	require.Equal(t, "bad\x00\xff", rows[1].Key)
}

// runParked claims the key of a leased row.
func runParked(t *testing.T, h Harness, l parking.Leased) (keystore.Tx, keystore.Claim, keystore.Verdict) {
	t.Helper()
	c := claim(l.Key)
	c.OrderingKey, c.Fingerprint, c.Redriven = l.OrderingKey, l.Fingerprint, l.Redriven
	c.Parked = &l.Lease
	tx := begin(t, h.Store)
	return tx, c, claimOne(t, tx, c)
}

func settleRow(t *testing.T, h Harness) {
	park(t, h.Parking, row(claim("a"), parking.Waiting))
	l := leaseRow(t, h.Parking, long)
	tx, c, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome, "a row does not stand in its own way")
	require.NoError(t, effect(t.Context(), tx, "a"))
	d := completed(c, "")
	d.Settles = &l.Lease
	require.Len(t, parked(t, h.Parking, "a"), 1, "the row goes with the effect, not before")
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{d}))
	require.Empty(t, parked(t, h.Parking, "a"))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("a")).Outcome)
	require.ErrorIs(t, h.Parking.Extend(t.Context(), l.Lease, long), parking.ErrLeaseLost)
}

func settleReplaced(t *testing.T, h Harness) {
	park(t, h.Parking, row(claim("a"), parking.Waiting))
	was := parked(t, h.Parking, "a")[0]
	l := leaseRow(t, h.Parking, long)
	tx, c, _ := runParked(t, h, l)
	dead := row(c, parking.Dead)
	dead.UUID, dead.Reason, dead.Attempts = l.UUID, "attempts-exhausted", 9
	d := keystore.Completion{Claim: c, State: keystore.Failed, Retention: retention, Park: &dead, Settles: &l.Lease}
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{d}))
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, parking.Dead, rows[0].State)
	require.Equal(t, "attempts-exhausted", rows[0].Reason)
	require.Equal(t, 9, rows[0].Attempts)
	require.True(t, rows[0].FirstAt.Equal(was.FirstAt), "it was first parked then")
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("a")).Outcome)
}

func settleLost(t *testing.T, h Harness) {
	park(t, h.Parking, row(claim("a"), parking.Waiting))
	l := leaseRow(t, h.Parking, long)
	require.NoError(t, h.Parking.Release(t.Context(), l.Lease))
	next := leaseRow(t, h.Parking, long)
	require.NotEqual(t, l.Lease.Token, next.Lease.Token)

	tx, c, v := runParked(t, h, l)
	if v.Outcome == keystore.Fresh {
		require.NoError(t, effect(t.Context(), tx, "a"))
		d := completed(c, "")
		d.Settles = &l.Lease
		require.ErrorIs(t, tx.Commit(t.Context(), []keystore.Completion{d}), parking.ErrLeaseLost)
	}
	require.NoError(t, tx.Rollback())
	require.Zero(t, h.effects(t, "a"))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	require.Len(t, parked(t, h.Parking, "a"), 1)
	require.NoError(t, h.Parking.Extend(t.Context(), next.Lease, long), "the new holder's lease is untouched")
}

// settleDuplicate: a parked copy of a message that was completed meanwhile just goes.
func settleDuplicate(t *testing.T, h Harness) {
	complete(t, h.Store, "a")
	park(t, h.Parking, row(claim("a"), parking.Waiting))
	l := leaseRow(t, h.Parking, long)
	tx, c, v := runParked(t, h, l)
	require.Equal(t, keystore.Duplicate, v.Outcome)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: c, Keep: true, Settles: &l.Lease}}))
	require.Empty(t, parked(t, h.Parking, "a"))
	require.Equal(t, keystore.Completed, state(t, h.Store, "a"))
}
