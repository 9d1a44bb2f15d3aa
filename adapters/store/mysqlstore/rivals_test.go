package mysqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// TestRivalClaimsHardlyDeadlock: rivals claim the same groups of keys in any order, and some of them roll back, which is where locks of
// gaps make the others deadlock. What is left is that two insert after two rollbacks in a row: a few, more on a busy machine, where claims
// in the callers' order deadlock a hundred times. Each key is completed once.
func TestRivalClaimsHardlyDeadlock(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	run(t, s, `CREATE TABLE effects (k varbinary(255) PRIMARY KEY)`)
	const rivals, groups = 8, 40
	var deadlocks, completions atomic.Int64
	var wg sync.WaitGroup
	for range rivals {
		wg.Go(func() {
			for group := range groups {
				for {
					n, err := claimGroup(t.Context(), s.Keys(), group)
					var said *mysql.MySQLError
					if errors.As(err, &said) && said.Number == 1213 {
						deadlocks.Add(1)
						continue
					}
					if !errors.Is(err, errAgain) {
						require.NoError(t, err)
						completions.Add(int64(n))
						break
					}
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, groups*10, completions.Load())
	require.LessOrEqual(t, deadlocks.Load(), int64(rivals*groups/8), "of %d transactions and more", rivals*groups)
}

var errAgain = errors.New("rolled back on purpose")

// claimGroup claims ten keys, shuffled, and every third time rolls back.
func claimGroup(ctx context.Context, keys keystore.Store, group int) (completed int, err error) {
	tx, err := keys.Begin(ctx, keystore.TxOptions{LockTimeout: 20 * time.Second})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	claims := make([]keystore.Claim, 10)
	for i, n := range rand.Perm(len(claims)) {
		claims[i] = claimOf(fmt.Sprintf("%d-%d", group, n))
	}
	verdicts, err := tx.Claim(ctx, claims)
	if err != nil {
		return 0, err
	}
	var done []keystore.Completion
	for i, v := range verdicts {
		if v.Outcome != keystore.Fresh {
			continue
		}
		if _, err := tx.SQL().ExecContext(ctx, `INSERT INTO effects VALUES (?)`, claims[i].Key); err != nil {
			return 0, err
		}
		done = append(done, keystore.Completion{Claim: claims[i], State: keystore.Completed, Retention: time.Hour})
	}
	if rand.N(3) == 0 {
		return 0, errAgain
	}
	return len(done), tx.Commit(ctx, done)
}

// TestNobodyWaitsForAKeyThatIsThere: a failed key stays failed until the run that replaces it commits, and a copy is told so at once.
func TestNobodyWaitsForAKeyThatIsThere(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	tx := begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{{Claim: claimOf("a"), State: keystore.Failed, Retention: time.Hour}}))

	redriven := claimOf("a")
	redriven.Redriven = true
	runs := begin(t, s, keystore.TxOptions{})
	verdicts, err := runs.Claim(t.Context(), []keystore.Claim{redriven})
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)

	began := time.Now()
	verdicts, err = begin(t, s, keystore.TxOptions{LockTimeout: 20 * time.Second}).Claim(t.Context(), []keystore.Claim{claimOf("a"), claimOf("b")})
	require.NoError(t, err)
	require.Equal(t, keystore.Rejected, verdicts[0].Outcome)
	require.Equal(t, keystore.Fresh, verdicts[1].Outcome)
	verdicts, err = s.Keys().Acquire(t.Context(), "me", []keystore.Claim{claimOf("a"), claimOf("c")}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, keystore.Rejected, verdicts[0].Outcome)
	require.Less(t, time.Since(began), 10*time.Second)
}
