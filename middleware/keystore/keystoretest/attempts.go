package keystoretest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

var attemptTests = []test{
	{"CountGrows", attemptsCount},
	{"SuspectAndAbsolve", attemptsSuspect},
	{"SurviveRollbacks", attemptsRollback},
	{"CountIsExactUnderRivals", attemptsRivals},
	{"ErrorTextIsKept", attemptsError},
	{"ByScopeAndKey", attemptsByID},
}

var id = keystore.ID{Scope: scope, Key: "a"}

func attemptsCount(t *testing.T, h Harness) {
	nothing, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, nothing)

	for i := 1; i <= 3; i++ {
		n, err := h.Store.Count(t.Context(), id, keystore.Failure{Class: "transient", Error: "e" + strings.Repeat("!", i), RetryIn: time.Hour})
		require.NoError(t, err)
		require.Equal(t, i, n)
	}
	a, err := h.Reopen(t).Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 3, a.Failures)
	require.Equal(t, "transient", a.LastClass)
	require.Equal(t, "e!!!", a.LastError)
	require.WithinDuration(t, a.LastAt.Add(time.Hour), a.NextAt, time.Second)
	require.False(t, a.FirstAt.After(a.LastAt))
	require.WithinDuration(t, time.Now(), a.FirstAt, time.Minute)
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"), "attempts are no claim")
}

func attemptsSuspect(t *testing.T, h Harness) {
	for want := 1; want <= 3; want++ {
		n, err := h.Store.Suspect(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.NoError(t, h.Store.Absolve(t.Context(), id))
	n, err := h.Store.Suspect(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for range 5 {
		require.NoError(t, h.Store.Absolve(t.Context(), id))
	}
	n, err = h.Store.Suspect(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 1, n, "nothing is below zero")
	require.NoError(t, h.Store.Absolve(t.Context(), keystore.ID{Scope: scope, Key: "never seen"}))

	a, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 1, a.Suspected)
	require.Zero(t, a.Failures, "suspicions are no failures")
}

func attemptsRollback(t *testing.T, h Harness) {
	for want := 1; want <= 3; want++ {
		_, err := h.Store.Suspect(t.Context(), id)
		require.NoError(t, err)
		tx := begin(t, h.Store)
		require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
		require.NoError(t, tx.Rollback())
		n, err := h.Store.Count(t.Context(), id, keystore.Failure{Class: "transient", Error: "x"})
		require.NoError(t, err)
		require.Equal(t, want, n)
		require.NoError(t, h.Store.Absolve(t.Context(), id))
	}
	complete(t, h.Store, "a")
	a, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 3, a.Failures, "the history is kept with the key")
	require.True(t, a.NextAt.IsZero())
}

func attemptsRivals(t *testing.T, h Harness) {
	h.race(t, 12, func(_ int, s keystore.Store) error {
		for {
			_, err := s.Count(t.Context(), id, keystore.Failure{Class: "transient", Error: "x"})
			if err != nil && s.Classify(err) == keystore.FaultContention {
				continue
			}
			return err
		}
	})
	a, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, 12, a.Failures)
}

func attemptsError(t *testing.T, h Harness) {
	for _, text := range []string{"nul \x00 inside", "not \xff\xfe UTF-8", strings.Repeat("\u00e4", 5000), ""} {
		_, err := h.Store.Count(t.Context(), id, keystore.Failure{Class: "transient", Error: text})
		require.NoError(t, err, "%.20q", text)
		a, err := h.Store.Attempt(t.Context(), id)
		require.NoError(t, err)
		require.LessOrEqual(t, len(a.LastError), 2<<10)
		if text != "" {
			require.NotEmpty(t, a.LastError)
		}
	}
}

func attemptsByID(t *testing.T, h Harness) {
	for _, other := range []keystore.ID{{Scope: scope, Key: "A"}, {Scope: scope, Key: "a "}, {Scope: "svc.other", Key: "a"}} {
		n, err := h.Store.Count(t.Context(), other, keystore.Failure{Class: "x"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	a, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, a)
}
