package keystoretest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

var epochTests = []test{
	{"EveryoneReadsOneEpoch", epochOne},
	{"RaisedForEveryone", epochRaised},
	{"ForgettingAKeyRaisesIt", epochForget},
	{"HeldClaimPassesParkedRows", epochHeld},
}

func epoch(t *testing.T, s keystore.Epochs) string {
	t.Helper()
	name, err := s.Epoch(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, name)
	return name
}

func epochOne(t *testing.T, h Harness) {
	first := epoch(t, h.Store)
	require.Equal(t, first, epoch(t, h.Store))
	require.Equal(t, first, epoch(t, h.Reopen(t).Store))
	commit(t, h.Store, completed(claim("a"), ""))
	require.Equal(t, first, epoch(t, h.Store), "what is completed changes nothing")
}

func epochRaised(t *testing.T, h Harness) {
	seen := map[string]bool{epoch(t, h.Store): true}
	for range 3 {
		name, err := h.Store.RaiseEpoch(t.Context(), "tester", "a backup was restored")
		require.NoError(t, err)
		require.False(t, seen[name], "no name comes twice")
		seen[name] = true
		require.Equal(t, name, epoch(t, h.Store))
		require.Equal(t, name, epoch(t, h.Reopen(t).Store))
	}
}

func epochForget(t *testing.T, h Harness) {
	before := epoch(t, h.Store)
	commit(t, h.Store, completed(claim("a"), ""))
	require.Error(t, h.Store.Forget(t.Context(), claim("never seen").ID, "tester", ""))
	require.Equal(t, before, epoch(t, h.Store), "nothing was forgotten")
	require.NoError(t, h.Store.Forget(t.Context(), claim("a").ID, "tester", "by mistake"))
	require.NotEqual(t, before, epoch(t, h.Store))
}

// epochHeld: who holds the lease elsewhere inserts the key, also when another copy of its message was parked meanwhile.
func epochHeld(t *testing.T, h Harness) {
	c := orderedClaim("a", "o")
	park(t, h.Parking, row(c, "waiting"))
	require.Equal(t, keystore.Waits, probe(t, h.Store, c).Outcome)
	c.Held = true
	commit(t, h.Store, completed(c, `"done"`))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, c).Outcome)
}
