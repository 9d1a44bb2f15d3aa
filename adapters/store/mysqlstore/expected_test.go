package mysqlstore_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// TestClaimsThatExpectTheirCompletion: a claim that says what its completion will be writes the key ahead. Whatever comes otherwise
// is written as it came.
func TestClaimsThatExpectTheirCompletion(t *testing.T) {
	t.Parallel()
	claim := keystore.Claim{ID: keystore.ID{Scope: "s", Key: "a"}, Fingerprint: "payload:1:x", Retention: time.Hour, Owner: "me"}
	dead := &parking.Row{State: parking.Dead, Scope: "s", Topic: "t", UUID: "u", Key: "a", Fingerprint: claim.Fingerprint, Reason: "r"}
	for name, c := range map[string]struct {
		done *keystore.Completion
		want keystore.Record
	}{
		"as expected":       {done: &keystore.Completion{State: keystore.Completed, Retention: time.Hour, Owner: "me"}, want: keystore.Record{State: keystore.Completed, Owner: "me"}},
		"with a result":     {done: &keystore.Completion{State: keystore.Completed, Retention: time.Hour, Owner: "me", Result: json.RawMessage(`{"b": 1}`)}, want: keystore.Record{State: keystore.Completed, Owner: "me", Result: json.RawMessage(`{"b": 1}`)}},
		"another owner":     {done: &keystore.Completion{State: keystore.Completed, Retention: time.Hour, Owner: "you"}, want: keystore.Record{State: keystore.Completed, Owner: "you"}},
		"another retention": {done: &keystore.Completion{State: keystore.Completed, Retention: 2 * time.Hour, Owner: "me"}, want: keystore.Record{State: keystore.Completed, Owner: "me"}},
		"failed":            {done: &keystore.Completion{State: keystore.Failed, Retention: time.Hour, Owner: "me", Park: dead}, want: keystore.Record{State: keystore.Failed, Owner: "me"}},
		"absent":            {done: &keystore.Completion{State: keystore.Absent}, want: keystore.Record{State: keystore.Absent}},
		"kept as it was":    {done: &keystore.Completion{Keep: true, Park: dead}, want: keystore.Record{State: keystore.Absent}},
		"not completed":     {want: keystore.Record{State: keystore.Absent}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, s := newWorld(t)
			tx, err := s.Keys().Begin(t.Context(), keystore.TxOptions{})
			require.NoError(t, err)
			verdicts, err := tx.Claim(t.Context(), []keystore.Claim{claim})
			require.NoError(t, err)
			require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
			records, err := s.Keys().Peek(t.Context(), []keystore.ID{claim.ID})
			require.NoError(t, err)
			require.Equal(t, keystore.Absent, records[0].State, "nobody sees it before the commit")
			var completions []keystore.Completion
			if c.done != nil {
				c.done.Claim = claim
				completions = append(completions, *c.done)
			}
			require.NoError(t, tx.Commit(t.Context(), completions))

			records, err = s.Keys().Peek(t.Context(), []keystore.ID{claim.ID})
			require.NoError(t, err)
			got := records[0]
			require.Equal(t, c.want.State, got.State)
			require.Equal(t, c.want.Owner, got.Owner)
			require.Equal(t, string(c.want.Result), string(got.Result))
			if got.State != keystore.Absent {
				require.WithinDuration(t, got.ProcessedAt.Add(c.done.Retention), got.ExpiresAt, time.Millisecond)
			}
		})
	}
}

// TestRetentionCountsFromTheCommit: after a handler that took its time the key is kept from the commit on, not from the claim.
func TestRetentionCountsFromTheCommit(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	claim := keystore.Claim{ID: keystore.ID{Scope: "s", Key: "a"}, Retention: time.Hour}
	tx, err := s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	_, err = tx.Claim(t.Context(), []keystore.Claim{claim})
	require.NoError(t, err)
	time.Sleep(1200 * time.Millisecond) // the handler
	before := time.Now()
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: claim, State: keystore.Completed, Retention: time.Hour}}))
	records, err := s.Keys().Peek(t.Context(), []keystore.ID{claim.ID})
	require.NoError(t, err)
	require.False(t, records[0].ExpiresAt.Before(before.Add(time.Hour).Truncate(time.Microsecond)))
}
