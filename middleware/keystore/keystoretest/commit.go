package keystoretest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

var commitTests = []test{
	{"EverythingTogether", commitTogether},
	{"RollbackLeavesNothing", commitRollback},
	{"F002ObserverNeverSeesOneWithoutTheOther", commitObserver},
	{"ResultHasALimit", commitResultLimit},
	{"ResultIsJSON", commitResultJSON},
	{"AbsentLeavesNoKey", commitAbsent},
	{"FreshAndNotCompletedLeavesNoKey", commitForgotten},
	{"OutboxKeepsTheOrder", commitOutboxOrder},
	{"OneFailingCompletionCommitsNothing", commitOneFails},
	{"WakesRelay", commitWakes},
	{"EndedContext", commitEndedContext},
}

func commitTogether(t *testing.T, h Harness) {
	keys := numbered("k", 5)
	claims := make([]keystore.Claim, len(keys))
	for i, key := range keys {
		claims[i] = claim(key)
	}
	tx := begin(t, h.Store)
	_, err := tx.Claim(t.Context(), claims)
	require.NoError(t, err)
	var done []keystore.Completion
	for i, c := range claims {
		require.NoError(t, effect(t.Context(), tx, c.Key))
		d := completed(c, `"ok"`)
		d.Outbox = []outbox.Record{message(c.Key + "/out")}
		if i == 4 {
			r := row(c, parking.Dead)
			d = keystore.Completion{Claim: c, State: keystore.Failed, Retention: retention, Park: &r}
		}
		done = append(done, d)
	}
	require.Equal(t, keystore.Absent, state(t, h.Store, keys[0]), "nothing is visible before the commit")
	require.Zero(t, h.effects(t, keys[0]))
	require.Zero(t, h.outgoing(t))
	require.NoError(t, tx.Commit(t.Context(), done))

	for i, key := range keys {
		require.Equal(t, 1, h.effects(t, key))
		want := keystore.Duplicate
		if i == 4 {
			want = keystore.Rejected
		}
		require.Equal(t, want, probe(t, h.Reopen(t).Store, claim(key)).Outcome)
	}
	require.Equal(t, 4, h.outgoing(t))
	require.Len(t, parked(t, h.Parking, keys[4]), 1)
}

func commitRollback(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	require.NoError(t, tx.Rollback())
	require.Zero(t, h.effects(t, "a"))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("a")).Outcome)
}

// commitObserver reads all four tables in one statement, over and over, while messages are completed and rolled back.
func commitObserver(t *testing.T, h Harness) {
	const n = 25
	ctx, cancel := context.WithCancel(t.Context())
	looks := make(chan int, 1)
	var wrong error
	go func() {
		count := 0
		for ; ctx.Err() == nil && wrong == nil; count++ {
			wrong = observe(ctx, h)
		}
		looks <- count
	}()
	for i := range n {
		c := claim(fmt.Sprint("k", i))
		tx := begin(t, h.Store)
		require.Equal(t, keystore.Fresh, claimOne(t, tx, c).Outcome)
		require.NoError(t, effect(ctx, tx, c.Key))
		if i%5 == 4 {
			require.NoError(t, tx.Rollback())
			continue
		}
		d, r := completed(c, ""), row(c, parking.Dead)
		d.Outbox, d.Park = []outbox.Record{message(c.Key)}, &r
		require.NoError(t, tx.Commit(ctx, []keystore.Completion{d}))
	}
	cancel()
	require.Positive(t, <-looks)
	require.NoError(t, wrong)
	require.NoError(t, observe(t.Context(), h))
}

func observe(ctx context.Context, h Harness) error {
	var effects, keys, out, parked int
	err := h.DB.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM effects),
		(SELECT count(*) FROM processed_events WHERE status = 'completed'),
		(SELECT count(*) FROM outbox), (SELECT count(*) FROM parked)`).Scan(&effects, &keys, &out, &parked)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case effects != keys || keys != out || out != parked:
		return fmt.Errorf("%d effects, %d completed keys, %d outgoing, %d parked", effects, keys, out, parked)
	}
	return nil
}

func commitResultLimit(t *testing.T, h Harness) {
	largest := `"` + strings.Repeat("x", keystore.MaxResult-2) + `"`
	commit(t, h.Store, completed(claim("fits"), largest))
	require.Equal(t, largest, string(probe(t, h.Store, claim("fits")).Record.Result))

	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("over")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "over"))
	err := tx.Commit(t.Context(), []keystore.Completion{completed(claim("over"), largest+" ")})
	require.ErrorIs(t, err, keystore.ErrResultTooLarge)
	require.NoError(t, tx.Rollback())
	require.Zero(t, h.effects(t, "over"))
	require.Equal(t, keystore.Absent, state(t, h.Store, "over"))
}

func commitResultJSON(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	require.Error(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), `{"a":`)}))
	require.NoError(t, tx.Rollback())
	require.Zero(t, h.effects(t, "a"))
}

func commitAbsent(t *testing.T, h Harness) {
	r := row(claim("a"), parking.Waiting)
	commit(t, h.Store, keystore.Completion{Claim: claim("a"), State: keystore.Absent, Park: &r})
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	require.Len(t, parked(t, h.Parking, "a"), 1)
	require.Equal(t, keystore.Waits, probe(t, h.Store, claim("a")).Outcome)
}

// commitForgotten: a key that was claimed and not completed is not left in progress for ever.
func commitForgotten(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	_, err := tx.Claim(t.Context(), []keystore.Claim{claim("a"), claim("b")})
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("b"), "")}))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("a")).Outcome)
	require.Equal(t, keystore.Completed, state(t, h.Store, "b"))
}

func commitOutboxOrder(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	_, err := tx.Claim(t.Context(), []keystore.Claim{claim("b"), claim("a")})
	require.NoError(t, err)
	b, a := completed(claim("b"), ""), completed(claim("a"), "")
	var want []string
	for i := range 6 {
		m := message(fmt.Sprint("m", i))
		m.OrderingKey, m.ParentKey, m.Metadata = "o", "parent", map[string]string{"n": fmt.Sprint(i)}
		want = append(want, m.Key)
		if i < 3 {
			b.Outbox = append(b.Outbox, m)
		} else {
			a.Outbox = append(a.Outbox, m)
		}
	}
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{b, a}))
	records, err := h.Outbox.List(t.Context(), false, 100)
	require.NoError(t, err)
	var got []string
	for i, r := range records {
		got = append(got, r.Key)
		require.Equal(t, fmt.Sprint(i), r.Metadata["n"])
		require.Equal(t, scope, r.Scope)
		require.Equal(t, "parent", r.ParentKey)
	}
	require.Equal(t, want, got)
}

func commitOneFails(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	_, err := tx.Claim(t.Context(), []keystore.Claim{claim("a"), claim("b")})
	require.NoError(t, err)
	require.NoError(t, effect(t.Context(), tx, "a"))
	lost := completed(claim("b"), "")
	lost.Settles = &parking.Lease{ID: 4711, Token: "nobody"}
	done := completed(claim("a"), "")
	done.Outbox = []outbox.Record{message("m")}
	require.ErrorIs(t, tx.Commit(t.Context(), []keystore.Completion{done, lost}), parking.ErrLeaseLost)
	require.NoError(t, tx.Rollback())
	require.Zero(t, h.effects(t, "a"))
	require.Zero(t, h.outgoing(t))
	require.Equal(t, keystore.Absent, state(t, h.Store, "a"))
}

func commitWakes(t *testing.T, h Harness) {
	wake := h.Outbox.Wake()
	d := completed(claim("a"), "")
	d.Outbox = []outbox.Record{message("m")}
	commit(t, h.Store, d)
	select {
	case <-wake:
	case <-time.After(patience):
		require.Fail(t, "the relay was not woken")
	}
}

func commitEndedContext(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, tx.Commit(ctx, []keystore.Completion{completed(claim("a"), "")}))
	_ = tx.Rollback()
	require.Equal(t, keystore.Fresh, probe(t, h.Store, claim("a")).Outcome)
}
