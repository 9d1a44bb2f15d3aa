package keystoretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var redrivenTests = []test{
	{"ReplacesItsFailedKey", redrivenReplaces},
	{"StaysFailedUntilTheCommit", redrivenStaysFailed},
	{"FailsAgain", redrivenFailsAgain},
	{"OtherPayloadIsAMismatch", redrivenMismatch},
	{"ByLease", redrivenByLease},
	{"UnderANewKey", redrivenAsKey},
	{"WaitsAgain", redrivenWaitsAgain},
}

// redriven makes a failed key, sends its dead letter back, and leases it.
func redriven(t *testing.T, h Harness, key string) parking.Leased {
	t.Helper()
	dead := row(claim(key), parking.Dead)
	commit(t, h.Store, keystore.Completion{Claim: claim(key), State: keystore.Failed, Retention: retention, Park: &dead})
	require.NoError(t, h.Parking.Redrive(t.Context(), parked(t, h.Parking, key)[0].ID, "", parking.Action{What: "redrive", By: "alice"}))
	l := leaseRow(t, h.Parking, long)
	require.True(t, l.Redriven)
	require.Equal(t, key, l.Key)
	return l
}

func redrivenReplaces(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	tx, c, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	d := completed(c, `"at last"`)
	d.Settles = &l.Lease
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{d}))
	after := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Duplicate, after.Outcome)
	require.Equal(t, `"at last"`, string(after.Record.Result))
	require.Empty(t, parked(t, h.Parking, "a"))
	require.Equal(t, 1, h.effects(t, "a"))
}

func redrivenStaysFailed(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	other := claim("a")
	other.Fingerprint = printB
	require.Equal(t, keystore.Mismatch, probe(t, h.Store, other).Outcome, "nobody else takes the key meanwhile")

	tx, _, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.Equal(t, keystore.Failed, state(t, h.Store, "a"))
	require.NoError(t, tx.Rollback())
	require.Equal(t, keystore.Failed, state(t, h.Store, "a"))
	copyOf := probe(t, h.Store, claim("a")).Outcome
	require.Contains(t, []keystore.Outcome{keystore.Rejected, keystore.Waits}, copyOf, "a copy from the broker does not run")

	tx, _, v = runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.NoError(t, tx.Commit(t.Context(), nil))
	require.Equal(t, keystore.Failed, state(t, h.Store, "a"), "claimed and not completed is failed as before")
}

func redrivenFailsAgain(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	tx, c, _ := runParked(t, h, l)
	dead := row(c, parking.Dead)
	dead.UUID, dead.Attempts = l.UUID, 2
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{
		{Claim: c, State: keystore.Failed, Retention: retention, Park: &dead, Settles: &l.Lease},
	}))
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("a")).Outcome)
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, parking.Dead, rows[0].State)
	require.False(t, rows[0].Redriven)
	require.NotEmpty(t, rows[0].History, "what people did to it is kept")
}

func redrivenMismatch(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	l.Fingerprint = printB
	tx, _, v := runParked(t, h, l)
	require.Equal(t, keystore.Mismatch, v.Outcome)
	require.NoError(t, tx.Rollback())

	complete(t, h.Store, "done")
	c := claim("done")
	c.Redriven = true
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, c).Outcome, "a completed key is never replaced")
}

func redrivenByLease(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	c := claim("a")
	c.Redriven, c.Parked = true, &l.Lease
	v := acquire(t, h.Store, "owner", c, long)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.NotEmpty(t, v.Token)
	require.NoError(t, h.Store.Release(t.Context(), c.ID, v.Token))
	require.Equal(t, keystore.Failed, state(t, h.Store, "a"), "given up, it is failed as before")

	v = acquire(t, h.Store, "owner", c, long)
	d := completed(held(c, v), "")
	d.Settles = &l.Lease
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{d}))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("a")).Outcome)
	require.Empty(t, parked(t, h.Parking, "a"))
}

func redrivenAsKey(t *testing.T, h Harness) {
	complete(t, h.Store, "a")
	mismatch := claim("a")
	mismatch.Fingerprint = printB
	park(t, h.Parking, row(mismatch, parking.Dead))
	require.NoError(t, h.Parking.Redrive(t.Context(), parked(t, h.Parking, "a")[0].ID, "a-2", parking.Action{What: "redrive", By: "alice"}))
	l := leaseRow(t, h.Parking, long)
	require.Equal(t, "a-2", l.Key)
	tx, c, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome)
	d := completed(c, "")
	d.Settles = &l.Lease
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{d}))
	require.Equal(t, keystore.Completed, state(t, h.Store, "a-2"))
	require.Equal(t, printB, probe(t, h.Store, mismatchOf("a-2")).Record.Fingerprint)
}

func mismatchOf(key string) keystore.Claim {
	c := claim(key)
	c.Fingerprint = printB
	return c
}

// redrivenWaitsAgain: a redriven message that meets a transient failure waits, and is still redriven.
func redrivenWaitsAgain(t *testing.T, h Harness) {
	l := redriven(t, h, "a")
	change := l.Row
	change.Attempts = 5
	require.NoError(t, h.Parking.Postpone(t.Context(), l.Lease, 0, change))
	again := leaseRow(t, h.Parking, long)
	require.True(t, again.Redriven)
	require.Equal(t, 5, again.Attempts)
	_, _, v := runParked(t, h, again)
	require.Equal(t, keystore.Fresh, v.Outcome)
}
