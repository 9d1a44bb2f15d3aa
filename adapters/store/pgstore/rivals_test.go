package pgstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// somebodyWaits waits for a session of the test's to wait for another's lock.
func somebodyWaits(t *testing.T, w *world) {
	t.Helper()
	s := w.open(t)
	testenv.Eventually(t, 10*time.Second, func() error {
		var n int
		err := s.DB().Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1`, w.db.Schema)
		if err == nil && n == 0 {
			err = errNobody
		}
		return err
	})
}

// failedKey leaves a key failed, with its dead letter.
func failedKey(t *testing.T, keys keystore.Store, key string) {
	t.Helper()
	tx, err := keys.Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	claim := claimOf(key)
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{claim})
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{
		Claim: claim, State: keystore.Failed, Retention: time.Hour,
		Park: &parking.Row{State: parking.Dead, Scope: claim.Scope, Topic: "t", UUID: "u", Key: key, Fingerprint: claim.Fingerprint, Reason: "r"},
	}}))
}

// TestRivalsForARedrivenFailure: of two runs of one redriven message the second waits for the first, and then finds its effect.
func TestRivalsForARedrivenFailure(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	failedKey(t, s.Keys(), "a")
	claim := claimOf("a")
	claim.Redriven = true
	first := begin(t, s, keystore.TxOptions{})
	verdicts, err := first.Claim(t.Context(), []keystore.Claim{claim})
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)

	second := begin(t, s, keystore.TxOptions{LockTimeout: time.Minute})
	answer := make(chan keystore.Outcome, 1)
	go func() {
		verdicts, err := second.Claim(t.Context(), []keystore.Claim{claim})
		if err != nil {
			answer <- keystore.Outcome(err.Error())
			return
		}
		answer <- verdicts[0].Outcome
	}()
	somebodyWaits(t, w)
	require.NoError(t, first.Commit(t.Context(), completed("a")))
	require.Equal(t, keystore.Duplicate, <-answer)
}

// TestRivalsForALeaseThatIsOver: a transaction that takes over a dead owner's key locks it against the next who would.
func TestRivalsForALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	_, err := s.Keys().Acquire(t.Context(), "dead", []keystore.Claim{claimOf("a")}, time.Millisecond)
	require.NoError(t, err)
	first := begin(t, s, keystore.TxOptions{})
	testenv.Eventually(t, 10*time.Second, func() error {
		if claimKey(t, first, "a") != keystore.TakenOver {
			return errNobody
		}
		return nil
	})
	answer := make(chan keystore.Outcome, 1)
	go func() {
		verdicts, err := s.Keys().Acquire(t.Context(), "next", []keystore.Claim{claimOf("a")}, time.Hour)
		if err != nil {
			answer <- keystore.Outcome(err.Error())
			return
		}
		answer <- verdicts[0].Outcome
	}()
	somebodyWaits(t, w)
	require.NoError(t, first.Commit(t.Context(), completed("a")))
	require.Equal(t, keystore.Duplicate, <-answer)
}
