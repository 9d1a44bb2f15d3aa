package keystoretest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

var claimTests = []test{
	{"Fresh", claimFresh},
	{"DuplicateHasTheResult", claimDuplicate},
	{"MismatchInEveryState", claimMismatch},
	{"NoFingerprintMatchesEverything", claimNoFingerprint},
	{"F015KeysAreByteExact", claimByteExact},
	{"ScopesAreSeparate", claimScopes},
	{"LongestKeyAndScope", claimLongest},
	{"SeveralInOneCall", claimSeveral},
	{"OneKeyTwiceInOneCall", claimTwice},
	{"NothingToClaim", claimNothing},
	{"TransactionGoesOnAfterADuplicate", claimGoesOn},
}

func claimFresh(t *testing.T, h Harness) {
	v := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("a")).Outcome, "rolled back is as never seen")
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
}

func claimDuplicate(t *testing.T, h Harness) {
	before := time.Now()
	commit(t, h.Store, completed(claim("a"), `{"b": 1,  "a": "\u00e9\u0000"}`))
	for _, s := range []keystore.Store{h.Store, h.Reopen(t).Store} {
		v := probe(t, s, claim("a"))
		require.Equal(t, keystore.Duplicate, v.Outcome)
		r := v.Record
		require.Equal(t, keystore.Completed, r.State)
		require.Equal(t, `{"b": 1,  "a": "\u00e9\u0000"}`, string(r.Result), "the result is kept byte for byte")
		require.Equal(t, printA, r.Fingerprint)
		require.Equal(t, "tester", r.Owner)
		require.WithinDuration(t, before, r.ProcessedAt, time.Minute)
		require.WithinDuration(t, r.ProcessedAt.Add(retention), r.ExpiresAt, time.Second)
	}
	complete(t, h.Store, "without result")
	require.Nil(t, probe(t, h.Store, claim("without result")).Record.Result)
}

func claimMismatch(t *testing.T, h Harness) {
	other := func(key string) keystore.Claim {
		c := claim(key)
		c.Fingerprint = printB
		return c
	}
	complete(t, h.Store, "completed")
	rejected := claim("failed")
	dead := row(rejected, "dead")
	commit(t, h.Store, keystore.Completion{Claim: rejected, State: keystore.Failed, Retention: retention, Park: &dead})
	doubt := claim("in doubt")
	open := row(doubt, "in_doubt")
	commit(t, h.Store, keystore.Completion{Claim: doubt, State: keystore.InDoubt, Park: &open})
	acquire(t, h.Store, "owner", claim("in progress"), long)
	park(t, h.Parking, row(claim("waiting"), "waiting"))

	for _, key := range []string{"completed", "failed", "in doubt", "in progress", "waiting"} {
		require.Equal(t, keystore.Mismatch, probe(t, h.Store, other(key)).Outcome, key)
	}
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("failed")).Outcome)
	require.Equal(t, keystore.Doubtful, probe(t, h.Store, claim("in doubt")).Outcome)
	require.Equal(t, keystore.Busy, probe(t, h.Store, claim("in progress")).Outcome)
	require.Equal(t, keystore.Waits, probe(t, h.Store, claim("waiting")).Outcome)
}

func claimNoFingerprint(t *testing.T, h Harness) {
	none := claim("with")
	none.Fingerprint = ""
	complete(t, h.Store, "with")
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, none).Outcome)

	without := claim("without")
	without.Fingerprint = ""
	commit(t, h.Store, completed(without, ""))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("without")).Outcome)
	otherKind := claim("with")
	otherKind.Fingerprint = "json:1:cccc"
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, otherKind).Outcome, "prints of different kinds say nothing")
}

func claimByteExact(t *testing.T, h Harness) {
	keys := []string{
		"ord-A1", "ord-a1", "ord-\u00e1" + "1", "ord-a\u03011", "ord-a1 ", " ord-a1", "ord-a1  ", "ord-\uff411", "ORD-A1",
		"ord-a1\u00a0", "ord-a1\u200b", "stra\u00dfe", "strasse", "\u0130", "i\u0307", "I", "\u0131", "0", "00", "0.0", "1e1", "10",
		"'", "''", `"`, `\`, `\\`, "%", "_", "ord-a_", "ord-%", "\u2603", "\U0001f600", "null", "NULL", "\ufffd", "\ue000",
	}
	for round := range 2 {
		for _, key := range keys {
			tx := begin(t, h.Store)
			v := claimOne(t, tx, claim(key))
			if round == 0 {
				require.Equal(t, keystore.Fresh, v.Outcome, "%q", key)
				require.NoError(t, effect(t.Context(), tx, "e"))
				require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim(key), fmt.Sprintf("%q", key))}))
				continue
			}
			require.Equal(t, keystore.Duplicate, v.Outcome, "%q", key)
			require.Equal(t, fmt.Sprintf("%q", key), string(v.Record.Result))
			require.Equal(t, key, v.Record.Key)
			require.NoError(t, tx.Rollback())
		}
	}
	require.Equal(t, len(keys), h.effects(t, "e"))
	records, err := h.Store.List(t.Context(), keystore.Filter{Limit: 1000})
	require.NoError(t, err)
	var got []string
	for _, r := range records {
		got = append(got, r.Key)
	}
	require.ElementsMatch(t, keys, got)
}

func claimScopes(t *testing.T, h Harness) {
	complete(t, h.Store, "a")
	for _, other := range []string{"svc.other", "svc.Binding", "svc.binding ", "svc.binding.tenant"} {
		c := claim("a")
		c.Scope = other
		require.Equal(t, keystore.Fresh, probe(t, h.Store, c).Outcome, "%q", other)
	}
}

func claimLongest(t *testing.T, h Harness) {
	long := strings.Repeat("\u00e4", 127) + "x" // 255 bytes
	almost := strings.Repeat("\u00e4", 127) + "y"
	complete(t, h.Store, long)
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim(long)).Outcome)
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim(almost)).Outcome, "nothing is cut")

	c := claim(long)
	c.Scope, c.OrderingKey = strings.Repeat("s", 200), long
	commit(t, h.Store, completed(c, ""))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, c).Outcome)
}

func claimSeveral(t *testing.T, h Harness) {
	keys := numbered("k", 120)
	complete(t, h.Store, keys[10], keys[50], keys[119])
	order := rand.Perm(len(keys))
	claims := make([]keystore.Claim, len(keys))
	for i, k := range order {
		claims[i] = claim(keys[k])
	}
	tx := begin(t, h.Store)
	verdicts, err := tx.Claim(t.Context(), claims)
	require.NoError(t, err)
	require.Len(t, verdicts, len(claims))
	var done []keystore.Completion
	for i, v := range verdicts {
		require.Equal(t, claims[i].Key, v.Record.Key, "answers come in the order of the claims")
		if slices.Contains([]int{10, 50, 119}, order[i]) {
			require.Equal(t, keystore.Duplicate, v.Outcome)
			continue
		}
		require.Equal(t, keystore.Fresh, v.Outcome)
		done = append(done, completed(claims[i], fmt.Sprint(i)))
	}
	require.NoError(t, tx.Commit(t.Context(), done))
	for i, c := range claims {
		v := probe(t, h.Store, c)
		require.Equal(t, keystore.Duplicate, v.Outcome)
		if !slices.Contains([]int{10, 50, 119}, order[i]) {
			require.Equal(t, fmt.Sprint(i), string(v.Record.Result))
		}
	}
}

func claimTwice(t *testing.T, h Harness) {
	other := claim("a")
	other.Fingerprint = printB
	tx := begin(t, h.Store)
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{claim("b"), claim("a"), claim("a"), other, claim("b")})
	require.NoError(t, err)
	var got []keystore.Outcome
	for _, v := range verdicts {
		got = append(got, v.Outcome)
	}
	require.Equal(t, []keystore.Outcome{
		keystore.Fresh, keystore.Fresh, keystore.Duplicate, keystore.Mismatch, keystore.Duplicate,
	}, got)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("b"), ""), completed(claim("a"), "")}))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("a")).Outcome)
}

func claimNothing(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	verdicts, err := tx.Claim(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, verdicts)
	require.NoError(t, effect(t.Context(), tx, "e"))
	require.NoError(t, tx.Commit(t.Context(), nil))
	require.Equal(t, 1, h.effects(t, "e"))
}

func claimGoesOn(t *testing.T, h Harness) {
	complete(t, h.Store, "a")
	tx := begin(t, h.Store)
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{claim("a"), claim("b")})
	require.NoError(t, err)
	require.Equal(t, keystore.Duplicate, verdicts[0].Outcome)
	require.NoError(t, effect(t.Context(), tx, "b"), "the transaction is not aborted by the duplicate")
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("b"), "")}))
	require.Equal(t, 1, h.effects(t, "b"))
}
