package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

const patience = time.Minute

// TestF044ServerRestarts: a clean and two immediate restarts under load. The store goes on by itself, each error says that the database is
// not there or that a commit's outcome is unknown, and each effect is there once.
func TestF044ServerRestarts(t *testing.T) {
	t.Parallel()
	server := testenv.Private(t, "postgres")
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: server.Address}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context(), nil))

	l := startLoad(t, s)
	l.progress(t)
	server.Restart()
	l.progress(t)
	for range 2 {
		server.Crash()
		require.Error(t, s.Ping(t.Context()))
		server.Start()
		l.progress(t)
	}
	l.stop(t)
}

// load is eight writers of effects. Each error that they meet has to say that the database is not there or that an outcome is unknown.
type load struct {
	store         *pgstore.Store
	end           context.CancelFunc
	done, unknown atomic.Int64
	writers       sync.WaitGroup
}

// startLoad makes the table of effects and lets the writers begin.
func startLoad(t *testing.T, s *pgstore.Store) *load {
	t.Helper()
	run(t, s, `CREATE TABLE effects (k text NOT NULL)`)
	ctx, end := context.WithCancel(t.Context())
	l := &load{store: s, end: end}
	for w := range 8 {
		l.writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				effectOnce(t, s, fmt.Sprintf("%d-%d", w, n), &l.unknown)
				l.done.Add(1)
			}
		})
	}
	return l
}

// progress waits for fifty more effects.
func (l *load) progress(t *testing.T) {
	t.Helper()
	from := l.done.Load()
	testenv.Eventually(t, patience, func() error {
		if l.done.Load() < from+50 {
			return errNobody
		}
		return nil
	})
}

// stop ends the writers, and requires that each effect is there once, beside its key.
func (l *load) stop(t *testing.T) {
	t.Helper()
	l.end()
	l.writers.Wait()
	t.Logf("%d effects, %d commits of unknown outcome", l.done.Load(), l.unknown.Load())
	var rows, distinct, keys int64
	require.NoError(t, l.store.DB().QueryRow(`SELECT count(*), count(DISTINCT k), (SELECT count(*) FROM processed_events WHERE status = 'completed') FROM effects`).Scan(&rows, &distinct, &keys))
	require.Equal(t, l.done.Load(), rows)
	require.Equal(t, rows, distinct)
	require.Equal(t, rows, keys)
}

// effectOnce tries until the key's effect is there.
func effectOnce(t *testing.T, s *pgstore.Store, key string, unknown *atomic.Int64) {
	for {
		err := tryEffect(s, key)
		switch {
		case err == nil:
			return
		case errors.Is(err, keystore.ErrOutcomeUnknown):
			unknown.Add(1)
		case s.Keys().Classify(err) == keystore.FaultUnavailable:
			time.Sleep(5 * time.Millisecond)
		default:
			t.Errorf("neither unavailable nor unknown: %v", err)
			return
		}
	}
}

func tryEffect(s *pgstore.Store, key string) error {
	ctx := context.Background()
	tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	verdicts, err := tx.Claim(ctx, []keystore.Claim{claimOf(key)})
	if err != nil || verdicts[0].Outcome == keystore.Duplicate {
		return err
	}
	if _, err := tx.SQL().ExecContext(ctx, `INSERT INTO effects VALUES ($1)`, key); err != nil {
		return err
	}
	return tx.Commit(ctx, completed(key))
}
