package keystoretest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

var outputTests = []test{
	{"KeptWithTheKey", outputsKept},
	{"KeptUnderALease", outputsLeased},
	{"NotKept", outputsNotKept},
	{"GoneWithTheKey", outputsForgotten},
	{"ResendWritesThemAgain", outputsResend},
	{"ResendRefuses", outputsResendRefuses},
}

// loud is a completion of the key with two outgoing messages, which are kept.
func loud(c keystore.Claim) keystore.Completion {
	done := completed(c, `"ok"`)
	done.KeepOutputs = true
	for _, name := range []string{"first", "second"} {
		m := message(c.Key + "/" + name)
		m.OrderingKey, m.ParentKey, m.Payload = "o", c.Key, []byte("\x00\xff"+name)
		m.Metadata = map[string]string{"name": name, "text": "é\x00"}
		done.Outbox = append(done.Outbox, m)
	}
	done.Outbox[1].DeliverAt = time.Date(2040, 1, 2, 3, 4, 5, 6000, time.UTC)
	return done
}

// sent are the messages as they stand after the ids of one sending or another are taken away.
func sent(records []outbox.Record) []outbox.Record {
	plain := make([]outbox.Record, len(records))
	for i, r := range records {
		r.ID, r.CreatedAt = 0, time.Time{}
		if !r.DeliverAt.IsZero() {
			r.DeliverAt = r.DeliverAt.UTC()
		}
		plain[i] = r
	}
	return plain
}

// outputs reads what a key has kept.
func outputs(t *testing.T, s keystore.Transactional, id keystore.ID) ([]outbox.Record, bool) {
	t.Helper()
	tx := begin(t, s)
	records, kept, err := tx.Outputs(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback())
	return records, kept
}

func outputsKept(t *testing.T, h Harness) {
	one, two := loud(claim("one")), loud(claim("two"))
	one.Result, two.Outbox = nil, nil
	other := loud(claim("other"))
	other.KeepOutputs = false
	tx := begin(t, h.Store)
	_, err := tx.Claim(t.Context(), []keystore.Claim{two.Claim, one.Claim, other.Claim})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{two, one, other}))

	records, kept := outputs(t, h.Store, one.Claim.ID)
	require.True(t, kept)
	require.Equal(t, one.Outbox, sent(records))
	written, err := h.Outbox.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Equal(t, append(one.Outbox, other.Outbox...), sent(written), "they leave all the same")
	records, kept = outputs(t, h.Store, two.Claim.ID)
	require.True(t, kept)
	require.Empty(t, records)
	_, kept = outputs(t, h.Store, other.Claim.ID)
	require.False(t, kept)

	// In the transaction that found the duplicate, and on its connection alone.
	tx = begin(t, h.Store)
	require.Equal(t, keystore.Duplicate, claimOne(t, tx, one.Claim).Outcome)
	records, kept, err = tx.Outputs(t.Context(), one.Claim.ID)
	require.NoError(t, err)
	require.True(t, kept)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: one.Claim, Keep: true, Outbox: records}}))
	written, err = h.Outbox.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Equal(t, one.Outbox, sent(written)[4:])
}

func outputsLeased(t *testing.T, h Harness) {
	v := acquire(t, h.Store, "owner", claim("a"), long)
	done := loud(held(claim("a"), v))
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, done.Claim).Outcome)
	_, kept, err := tx.Outputs(t.Context(), id)
	require.NoError(t, err)
	require.False(t, kept, "not completed")
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{done}))
	records, kept := outputs(t, h.Store, id)
	require.True(t, kept)
	require.Equal(t, done.Outbox, sent(records))
}

func outputsNotKept(t *testing.T, h Harness) {
	_, kept := outputs(t, h.Store, id)
	require.False(t, kept, "absent")

	failed := loud(claim("a"))
	failed.State = keystore.Failed
	commit(t, h.Store, failed)
	_, kept = outputs(t, h.Store, id)
	require.False(t, kept, "failed")

	brief := loud(claim("b"))
	brief.Retention = time.Millisecond
	commit(t, h.Store, brief)
	h.elapse(50 * time.Millisecond)
	_, kept = outputs(t, h.Store, brief.Claim.ID)
	require.False(t, kept, "past its time, although not removed yet")
}

func outputsForgotten(t *testing.T, h Harness) {
	commit(t, h.Store, loud(claim("a")))
	require.NoError(t, h.Store.Forget(t.Context(), id, "alice", "test"))
	_, kept := outputs(t, h.Store, id)
	require.False(t, kept)
	complete(t, h.Store, "a")
	_, kept = outputs(t, h.Store, id)
	require.False(t, kept, "those of a run that was forgotten")
}

func outputsResend(t *testing.T, h Harness) {
	done := loud(claim("a"))
	commit(t, h.Store, done)
	<-h.Outbox.Wake()
	for range 2 {
		n, err := h.Store.Resend(t.Context(), id, "alice", "they lost it")
		require.NoError(t, err)
		require.Equal(t, 2, n)
	}
	written, err := h.Outbox.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Equal(t, append(append(append([]outbox.Record{}, done.Outbox...), done.Outbox...), done.Outbox...), sent(written))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, done.Claim).Outcome)
	require.Equal(t, `"ok"`, string(probe(t, h.Store, done.Claim).Record.Result))
	select {
	case <-h.Outbox.Wake():
	case <-time.After(patience):
		t.Fatal("the relay is not woken")
	}
}

func outputsResendRefuses(t *testing.T, h Harness) {
	refusal := (*parking.Refusal)(nil)
	_, err := h.Store.Resend(t.Context(), id, "alice", "")
	require.ErrorIs(t, err, keystore.ErrNotFound)

	complete(t, h.Store, "quiet")
	_, err = h.Store.Resend(t.Context(), claim("quiet").ID, "alice", "")
	require.ErrorAs(t, err, &refusal, "nothing was kept")
	acquire(t, h.Store, "owner", claim("running"), long)
	_, err = h.Store.Resend(t.Context(), claim("running").ID, "alice", "")
	require.ErrorAs(t, err, &refusal)
	require.ErrorContains(t, err, "in_progress")
	require.Zero(t, h.outgoing(t))
}
