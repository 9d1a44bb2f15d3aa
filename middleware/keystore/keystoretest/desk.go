package keystoretest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

var deskTests = []test{
	{"List", deskList},
	{"ListPrefixIsLiteral", deskPrefix},
	{"Peek", deskPeek},
	{"LookupInEveryScope", deskLookup},
	{"ResolveCompleted", deskResolveCompleted},
	{"ResolveAbsent", deskResolveAbsent},
	{"ResolveFailed", deskResolveFailed},
	{"ResolveRefuses", deskResolveRefuses},
	{"Forget", deskForget},
	{"ForgetRefuses", deskForgetRefuses},
	{"Scopes", deskScopes},
}

func listed(t *testing.T, h Harness, f keystore.Filter) []string {
	t.Helper()
	records, err := h.Store.List(t.Context(), f)
	require.NoError(t, err)
	var keys []string
	for _, r := range records {
		keys = append(keys, r.Key)
	}
	return keys
}

func deskList(t *testing.T, h Harness) {
	for _, key := range []string{"one", "two", "three"} {
		complete(t, h.Store, key)
		h.elapse(5e6) // the latest first needs different times
	}
	other := claim("elsewhere")
	other.Scope, other.Fingerprint = "svc.other", printB
	commit(t, h.Store, completed(other, ""))
	acquire(t, h.Store, "owner", claim("running"), long)

	require.Equal(t, []string{"running", "elsewhere", "three", "two", "one"}, listed(t, h, keystore.Filter{}))
	require.Equal(t, []string{"elsewhere"}, listed(t, h, keystore.Filter{Scope: "svc.other"}))
	require.Equal(t, []string{"running"}, listed(t, h, keystore.Filter{State: keystore.InProgress}))
	require.Equal(t, []string{"elsewhere"}, listed(t, h, keystore.Filter{Fingerprint: printB}))
	require.Equal(t, []string{"three", "two"}, listed(t, h, keystore.Filter{Prefix: "t"}))
	require.Equal(t, []string{"running", "elsewhere"}, listed(t, h, keystore.Filter{Limit: 2}))
	require.Empty(t, listed(t, h, keystore.Filter{Scope: "nobody"}))
}

func deskPrefix(t *testing.T, h Harness) {
	complete(t, h.Store, "a%b", "axb", "a_c", "A%b", "a%", "\u00e4-1", `a\b`)
	got := listed(t, h, keystore.Filter{Prefix: "a%"})
	slices.Sort(got)
	require.Equal(t, []string{"a%", "a%b"}, got)
	require.Equal(t, []string{"a_c"}, listed(t, h, keystore.Filter{Prefix: "a_"}))
	require.Equal(t, []string{"\u00e4-1"}, listed(t, h, keystore.Filter{Prefix: "\u00e4"}))
	require.Equal(t, []string{`a\b`}, listed(t, h, keystore.Filter{Prefix: `a\`}))
}

func deskPeek(t *testing.T, h Harness) {
	commit(t, h.Store, completed(claim("done"), `"r"`))
	acquire(t, h.Store, "owner", claim("running"), long)
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("open")).Outcome)
	ids := []keystore.ID{claim("nothing").ID, claim("running").ID, claim("done").ID, claim("open").ID, claim("done").ID}
	records, err := h.Store.Peek(t.Context(), ids)
	require.NoError(t, err)
	require.Len(t, records, len(ids))
	want := []keystore.State{keystore.Absent, keystore.InProgress, keystore.Completed, keystore.Absent, keystore.Completed}
	for i, r := range records {
		require.Equal(t, ids[i], r.ID)
		require.Equal(t, want[i], r.State)
	}
	require.Equal(t, `"r"`, string(records[2].Result))
	none, err := h.Store.Peek(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func deskLookup(t *testing.T, h Harness) {
	complete(t, h.Store, "a", "A")
	other := claim("a")
	other.Scope = "svc.other"
	commit(t, h.Store, completed(other, ""))
	_, err := h.Store.Count(t.Context(), keystore.ID{Scope: "svc.third", Key: "a"}, keystore.Failure{Class: "x"})
	require.NoError(t, err)

	records, err := h.Store.Lookup(t.Context(), "a")
	require.NoError(t, err)
	got := map[string]keystore.State{}
	for _, r := range records {
		require.Equal(t, "a", r.Key)
		got[r.Scope] = r.State
	}
	require.Equal(t, map[string]keystore.State{
		scope: keystore.Completed, "svc.other": keystore.Completed, "svc.third": keystore.Absent,
	}, got)
	records, err = h.Store.Lookup(t.Context(), "nobody's")
	require.NoError(t, err)
	require.Empty(t, records)
}

// doubtful puts a key in doubt, with its parked row.
func doubtful(t *testing.T, h Harness, key string) {
	t.Helper()
	v := acquire(t, h.Store, "owner", claim(key), long)
	r := row(claim(key), parking.InDoubt)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{
		{Claim: held(claim(key), v), State: keystore.InDoubt, Retention: retention, Park: &r},
	}))
}

func deskResolveCompleted(t *testing.T, h Harness) {
	doubtful(t, h, "a")
	require.NoError(t, h.Store.Resolve(t.Context(), id, keystore.Completed, json.RawMessage(`{"seen":"at the provider"}`), "alice", "checked"))
	v := probe(t, h.Store, claim("a"))
	require.Equal(t, keystore.Duplicate, v.Outcome)
	require.Equal(t, `{"seen":"at the provider"}`, string(v.Record.Result))
	require.False(t, v.Record.ExpiresAt.IsZero())
	require.Empty(t, parked(t, h.Parking, "a"))
}

func deskResolveAbsent(t *testing.T, h Harness) {
	doubtful(t, h, "a")
	require.NoError(t, h.Store.Resolve(t.Context(), id, keystore.Absent, nil, "alice", "it never arrived"))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	require.Equal(t, keystore.Waits, probe(t, h.Store, claim("a")).Outcome)
	l := leaseRow(t, h.Parking, long)
	require.Equal(t, "a", l.Key)
	require.NotEmpty(t, l.History)
	last := l.History[len(l.History)-1]
	require.Equal(t, "alice", last.By)
	require.Equal(t, "it never arrived", last.Why)
	require.True(t, strings.HasPrefix(last.What, "resolve"))
	_, _, v := runParked(t, h, l)
	require.Equal(t, keystore.Fresh, v.Outcome)
}

func deskResolveFailed(t *testing.T, h Harness) {
	doubtful(t, h, "a")
	require.NoError(t, h.Store.Resolve(t.Context(), id, keystore.Failed, nil, "alice", "gave up"))
	require.Equal(t, keystore.Rejected, probe(t, h.Store, claim("a")).Outcome)
	rows := parked(t, h.Parking, "a")
	require.Len(t, rows, 1)
	require.Equal(t, parking.Dead, rows[0].State)
}

func deskResolveRefuses(t *testing.T, h Harness) {
	complete(t, h.Store, "completed")
	acquire(t, h.Store, "owner", claim("running"), long)
	for _, key := range []string{"completed", "running"} {
		for _, to := range []keystore.State{keystore.Completed, keystore.Absent, keystore.Failed} {
			err := h.Store.Resolve(t.Context(), claim(key).ID, to, nil, "alice", "")
			require.ErrorIs(t, err, keystore.ErrNotInDoubt, "%s to %q", key, to)
		}
	}
	require.Error(t, h.Store.Resolve(t.Context(), claim("unknown").ID, keystore.Completed, nil, "alice", ""))
	doubtful(t, h, "doubt")
	require.Error(t, h.Store.Resolve(t.Context(), claim("doubt").ID, keystore.InProgress, nil, "alice", ""))
	require.Equal(t, keystore.InDoubt, state(t, h.Store, "doubt"))
}

func deskForget(t *testing.T, h Harness) {
	complete(t, h.Store, "a")
	_, err := h.Store.Count(t.Context(), id, keystore.Failure{Class: "x"})
	require.NoError(t, err)
	require.NoError(t, h.Store.Forget(t.Context(), id, "alice", "run it again"))
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("a")).Outcome)
	a, err := h.Store.Attempt(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, a.Failures, "a new life begins with no attempts")

	commit(t, h.Store, keystore.Completion{Claim: claim("failed"), State: keystore.Failed, Retention: retention})
	require.NoError(t, h.Store.Forget(t.Context(), claim("failed").ID, "alice", ""))
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("failed")).Outcome)
}

func deskForgetRefuses(t *testing.T, h Harness) {
	acquire(t, h.Store, "owner", claim("running"), long)
	doubtful(t, h, "doubt")
	dead := row(claim("dead"), parking.Dead)
	commit(t, h.Store, keystore.Completion{Claim: claim("dead"), State: keystore.Failed, Retention: retention, Park: &dead})
	for _, key := range []string{"running", "doubt", "dead"} {
		before := state(t, h.Store, key)
		err := h.Store.Forget(t.Context(), claim(key).ID, "alice", "")
		var refusal *parking.Refusal
		require.ErrorAs(t, err, &refusal, key)
		require.NotEmpty(t, refusal.Why)
		require.Equal(t, before, state(t, h.Store, key))
	}
	require.ErrorIs(t, h.Store.Forget(t.Context(), claim("unknown").ID, "alice", ""), keystore.ErrNotFound)
}

func deskScopes(t *testing.T, h Harness) {
	complete(t, h.Store, "a", "b")
	other := claim("a")
	other.Scope = "svc.other"
	commit(t, h.Store, completed(other, ""))
	waits := row(claim("x"), parking.Waiting)
	waits.Scope = "svc.parked"
	park(t, h.Parking, waits)
	scopes, err := h.Store.Scopes(t.Context())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(map[string]int64{scope: 2, "svc.other": 1, "svc.parked": 0}), fmt.Sprint(scopes))
}
