package keystoretest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

var rivalTests = []test{
	{"F001OneKeyTwentyRivals", rivalsOneKey},
	{"F001GroupsOfShuffledKeys", rivalsGroups},
	{"F025HolderCommits", rivalsHolderCommits},
	{"F025HolderRollsBack", rivalsHolderRollsBack},
	{"F025WaitIsBounded", rivalsBoundedWait},
	{"WaitEndsWithTheContext", rivalsContext},
	{"TransactionEndsWithItsContext", rivalsTxContext},
	{"RollbackIsSafeTwice", rivalsRollback},
	{"StricterIsolation", rivalsIsolation},
}

// once runs a group of claims until it commits: what is contended is tried again. It returns how many were fresh.
func once(ctx context.Context, s keystore.Store, opts keystore.TxOptions, claims []keystore.Claim) (int, error) {
	for {
		n, err := try(ctx, s, opts, claims)
		if err == nil || s.Classify(err) != keystore.FaultContention || ctx.Err() != nil {
			return n, err
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
}

// try claims, writes a business row for each fresh key, and commits.
func try(ctx context.Context, s keystore.Store, opts keystore.TxOptions, claims []keystore.Claim) (int, error) {
	tx, err := s.Begin(ctx, opts)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	verdicts, err := tx.Claim(ctx, claims)
	if err != nil {
		return 0, err
	}
	var done []keystore.Completion
	for i, v := range verdicts {
		switch v.Outcome {
		case keystore.Fresh:
			if err := effect(ctx, tx, claims[i].Key); err != nil {
				return 0, err
			}
			done = append(done, completed(claims[i], `"done"`))
		case keystore.Duplicate:
		default:
			return 0, fmt.Errorf("unexpected outcome %s", v.Outcome)
		}
	}
	time.Sleep(2 * time.Millisecond) // work, in which rivals arrive
	return len(done), tx.Commit(ctx, done)
}

// race runs fn n times at once, on two handles in turn.
func (h Harness) race(t *testing.T, n int, fn func(i int, s keystore.Store) error) {
	t.Helper()
	stores := []keystore.Store{h.Store, h.Reopen(t).Store}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i, stores[i%2]) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func rivalsOneKey(t *testing.T, h Harness) {
	var fresh atomic.Int64
	h.race(t, 20, func(_ int, s keystore.Store) error {
		n, err := once(t.Context(), s, keystore.TxOptions{}, []keystore.Claim{claim("a")})
		fresh.Add(int64(n))
		return err
	})
	require.EqualValues(t, 1, fresh.Load())
	require.Equal(t, 1, h.effects(t, "a"))
}

func rivalsGroups(t *testing.T, h Harness) {
	keys := numbered("k", 30)
	var fresh atomic.Int64
	h.race(t, 8, func(_ int, s keystore.Store) error {
		for range 4 {
			var claims []keystore.Claim
			for _, i := range rand.Perm(len(keys))[:12] {
				claims = append(claims, claim(keys[i]))
			}
			n, err := once(t.Context(), s, keystore.TxOptions{}, claims)
			fresh.Add(int64(n))
			if err != nil {
				return err
			}
		}
		return nil
	})
	total := 0
	for _, key := range keys {
		n := h.effects(t, key)
		require.LessOrEqual(t, n, 1, key)
		total += n
	}
	require.EqualValues(t, total, fresh.Load())
	require.Greater(t, total, len(keys)/2)
}

// second is what a rival got.
type second struct {
	verdict keystore.Verdict
	tx      keystore.Tx
	err     error
	after   time.Duration
}

// arrive lets a rival claim key while somebody holds it.
func arrive(ctx context.Context, s keystore.Store, opts keystore.TxOptions, key string) <-chan second {
	out := make(chan second, 1)
	began := time.Now()
	go func() {
		r := second{}
		if r.tx, r.err = s.Begin(ctx, opts); r.err == nil {
			var verdicts []keystore.Verdict
			if verdicts, r.err = r.tx.Claim(ctx, []keystore.Claim{claim(key)}); r.err == nil {
				r.verdict = verdicts[0]
			} else {
				_ = r.tx.Rollback()
			}
		}
		r.after = time.Since(began)
		out <- r
	}()
	return out
}

// stillWaiting requires that the rival gets no answer for a while.
func stillWaiting(t *testing.T, rival <-chan second) {
	t.Helper()
	select {
	case r := <-rival:
		require.Failf(t, "the rival did not wait", "outcome %q, error %v", r.verdict.Outcome, r.err)
	case <-time.After(300 * time.Millisecond):
	}
}

func answer(t *testing.T, rival <-chan second) second {
	t.Helper()
	select {
	case r := <-rival:
		if r.tx != nil {
			t.Cleanup(func() { _ = r.tx.Rollback() })
		}
		return r
	case <-time.After(patience):
		require.Fail(t, "the rival waits for ever")
		return second{}
	}
}

func rivalsHolderCommits(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	rival := arrive(t.Context(), other, keystore.TxOptions{LockTimeout: patience}, "a")
	stillWaiting(t, rival)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), `"first"`)}))

	r := answer(t, rival)
	require.NoError(t, r.err)
	require.Equal(t, keystore.Duplicate, r.verdict.Outcome)
	require.Equal(t, `"first"`, string(r.verdict.Record.Result))
	var one int
	require.NoError(t, r.tx.SQL().GetContext(t.Context(), &one, `SELECT 1`), "its transaction is still good")
	require.NoError(t, r.tx.Commit(t.Context(), nil))
	require.Equal(t, 1, h.effects(t, "a"))
}

func rivalsHolderRollsBack(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	rival := arrive(t.Context(), other, keystore.TxOptions{LockTimeout: patience}, "a")
	stillWaiting(t, rival)
	require.NoError(t, tx.Rollback())

	r := answer(t, rival)
	require.NoError(t, r.err)
	require.Equal(t, keystore.Fresh, r.verdict.Outcome)
	require.NoError(t, effect(t.Context(), r.tx, "a"))
	require.NoError(t, r.tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), "")}))
	require.Equal(t, 1, h.effects(t, "a"))
	require.Equal(t, keystore.Duplicate, probe(t, h.Store, claim("a")).Outcome)
}

func rivalsBoundedWait(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	r := answer(t, arrive(t.Context(), other, keystore.TxOptions{LockTimeout: 300 * time.Millisecond}, "a"))
	require.Error(t, r.err)
	require.Equal(t, keystore.FaultContention, other.Classify(r.err), "%v", r.err)
	require.GreaterOrEqual(t, r.after, 250*time.Millisecond)
	require.Less(t, r.after, 10*time.Second)

	r = answer(t, arrive(t.Context(), other, keystore.TxOptions{}, "a"))
	require.Error(t, r.err, "also without a lock timeout of the caller's")
	require.Equal(t, keystore.FaultContention, other.Classify(r.err), "%v", r.err)

	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), "")}))
	require.Equal(t, keystore.Duplicate, probe(t, other, claim("a")).Outcome, "a fresh transaction finds out")
}

func rivalsContext(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	r := answer(t, arrive(ctx, other, keystore.TxOptions{LockTimeout: patience}, "a"))
	require.Error(t, r.err)
	require.Less(t, r.after, patience/2, "the caller's end counts, not the lock timeout")
}

func rivalsTxContext(t *testing.T, h Harness) {
	other := h.Reopen(t).Store
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx, err := h.Store.Begin(ctx, keystore.TxOptions{})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, effect(t.Context(), tx, "a"))
	cancel()
	r := answer(t, arrive(t.Context(), other, keystore.TxOptions{LockTimeout: patience}, "a"))
	require.NoError(t, r.err)
	require.Equal(t, keystore.Fresh, r.verdict.Outcome, "the abandoned transaction ended by itself")
	require.NoError(t, r.tx.Rollback())
	require.Error(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), "")}))
	require.Zero(t, h.effects(t, "a"))
}

func rivalsRollback(t *testing.T, h Harness) {
	tx := begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, tx.Rollback())
	require.NoError(t, tx.Rollback())
	require.Error(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), "")}))

	tx = begin(t, h.Store)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, claim("a")).Outcome)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{completed(claim("a"), "")}))
	require.NoError(t, tx.Rollback(), "after a commit it does nothing")
	require.Equal(t, keystore.Completed, state(t, h.Store, "a"))
}

func rivalsIsolation(t *testing.T, h Harness) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		var fresh atomic.Int64
		key := "key " + isolation
		h.race(t, 6, func(_ int, s keystore.Store) error {
			n, err := once(t.Context(), s, keystore.TxOptions{Isolation: isolation}, []keystore.Claim{claim(key)})
			fresh.Add(int64(n))
			return err
		})
		require.EqualValues(t, 1, fresh.Load(), isolation)
		require.Equal(t, 1, h.effects(t, key), isolation)
	}
}
