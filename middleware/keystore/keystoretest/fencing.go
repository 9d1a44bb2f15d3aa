package keystoretest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

var fencingTests = []test{
	{"LateHolderIsRefused", fencingLateHolder},
	{"LateCompletionChangesNothing", fencingLateCompletion},
	{"RecordInTheHoldersTransaction", fencingRecord},
	{"ClaimLocksTheLease", fencingLocked},
	{"JustExpiredMayRecord", fencingJustExpiredRecord},
	{"RenewalDoesNotWaitForClaims", fencingRenewal},
}

// fencingLateHolder: a claim in a transaction judges a lease that is over as the steps of the lease do.
func fencingLateHolder(t *testing.T, h Harness) {
	late := acquire(t, h.Store, "one", claim("a"), short)
	now := takeOver(t, h.leasing(), "two", claim("a"))
	require.Equal(t, keystore.Lost, probe(t, h.Store, held(claim("a"), late)).Outcome)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), now), `"now"`)}))
	require.Equal(t, `"now"`, string(probe(t, h.Store, claim("a")).Record.Result))
	require.Equal(t, keystore.Lost, probe(t, h.Store, held(claim("a"), now)).Outcome, "a completed key is nobody's lease")
	require.Equal(t, keystore.Lost, probe(t, h.Store, held(claim("never seen"), now)).Outcome)
}

func fencingLateCompletion(t *testing.T, h Harness) {
	late, mine := acquire(t, h.Store, "one", claim("late"), short), acquire(t, h.Store, "one", claim("mine"), long)
	takeOver(t, h.leasing(), "two", claim("late"))
	dead := row(claim("late"), parking.Dead)
	done := completed(held(claim("mine"), mine), "")
	done.Outbox = []outbox.Record{message("m")}
	err := h.Store.Complete(t.Context(), []keystore.Completion{
		done, {Claim: held(claim("late"), late), State: keystore.Failed, Retention: retention, Park: &dead},
	})
	require.ErrorIs(t, err, keystore.ErrLeaseLost)
	require.Equal(t, keystore.InProgress, state(t, h.Store, "mine"), "one lost lease, and nothing is written")
	require.Empty(t, parked(t, h.Parking, "late"))
	require.Zero(t, h.outgoing(t))
	require.NoError(t, h.Store.Renew(t.Context(), claim("mine").ID, mine.Token, long))
}

func fencingRecord(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	tx := begin(t, h.Store)
	c := held(claim("a"), v)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, c).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	done := completed(c, `"recorded"`)
	done.Outbox = []outbox.Record{message("m")}
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{done}))
	require.Equal(t, 1, h.effects(t, "a"))
	require.Equal(t, 1, h.outgoing(t))
	require.Equal(t, `"recorded"`, string(probe(t, h.Store, claim("a")).Record.Result))
}

// fencingLocked: while the holder's transaction runs, nobody takes the lease over, also when its time is up.
func fencingLocked(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	v := acquire(t, h.Store, "one", claim("a"), short)
	tx := begin(t, h.Store)
	c := held(claim("a"), v)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, c).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	h.elapse(short)

	type answer struct {
		verdict keystore.Verdict
		err     error
	}
	rival := make(chan answer, 1)
	go func() {
		for {
			verdicts, err := other.Acquire(t.Context(), "two", []keystore.Claim{claim("a")}, long)
			if err != nil && other.Classify(err) == keystore.FaultContention {
				continue
			}
			a := answer{err: err}
			if err == nil {
				a.verdict = verdicts[0]
			}
			rival <- a
			return
		}
	}()
	select {
	case a := <-rival:
		require.Failf(t, "the rival did not wait", "outcome %q, error %v", a.verdict.Outcome, a.err)
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(c, "")}))
	a := <-rival
	require.NoError(t, a.err)
	require.Equal(t, keystore.Duplicate, a.verdict.Outcome)
	require.Equal(t, 1, h.effects(t, "a"))
}

func fencingJustExpiredRecord(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), 50*time.Millisecond)
	h.elapse(100 * time.Millisecond)
	require.Equal(t, keystore.Fresh, probe(t, h.Store, held(claim("a"), v)).Outcome, "nobody took it over")
}

func fencingRenewal(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	if h.Store.Capabilities().Writers == 1 {
		// With one writer a renewal waits for the one that writes, and goes before those that wait.
		require.NoError(t, h.Store.Renew(t.Context(), claim("a").ID, v.Token, long))
		return
	}
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("b")).Outcome)
	// The other transaction stays open: a renewal that waited for it would not return.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, h.Store.Renew(ctx, claim("a").ID, v.Token, long))
}
