package sqlitestore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

const workers = 8

// work handles keys in one process: each fifth is a duplicate of the one before it. No error is retried, so each one shows.
func work(ctx context.Context, s *sqlitestore.Store, from, keys int) report {
	var (
		r    report
		mu   sync.Mutex
		wg   sync.WaitGroup
		todo = make(chan int)
	)
	for range workers {
		wg.Go(func() {
			for n := range todo {
				began := time.Now()
				outcome, waited, err := handle(ctx, s, fmt.Sprintf("key-%d", n))
				mu.Lock()
				r.Worst = max(r.Worst, waited)
				switch {
				case err != nil:
					r.Errors = append(r.Errors, fmt.Sprintf("after %s: %v", time.Since(began), err))
				case outcome == keystore.Fresh:
					r.Fresh++
				case outcome == keystore.Duplicate:
					r.Duplicates++
				}
				mu.Unlock()
			}
		})
	}
	for n := range keys {
		todo <- from + n
		if n%5 == 4 {
			todo <- from + n
		}
	}
	close(todo)
	wg.Wait()
	return r
}

func handle(ctx context.Context, s *sqlitestore.Store, key string) (keystore.Outcome, time.Duration, error) {
	began := time.Now()
	tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
	waited := time.Since(began)
	if err != nil {
		return "", waited, err
	}
	defer func() { _ = tx.Rollback() }()
	claim := keystore.Claim{ID: keystore.ID{Scope: "s", Key: key}, Fingerprint: "payload:1:x"}
	verdicts, err := tx.Claim(ctx, []keystore.Claim{claim})
	if err != nil || verdicts[0].Outcome != keystore.Fresh {
		if err == nil {
			return verdicts[0].Outcome, waited, nil
		}
		return "", waited, err
	}
	if _, err := tx.SQL().ExecContext(ctx, `INSERT INTO effects (k) VALUES (?)`, key); err != nil {
		return "", waited, err
	}
	return keystore.Fresh, waited, tx.Commit(ctx, []keystore.Completion{{Claim: claim, State: keystore.Completed, Retention: time.Hour}})
}

// TestF052TwoProcessesTakeTurns: sixteen writers in two processes, and a third party that lists and cleans meanwhile. No lock error
// shows, nobody starves, and each effect is there once.
func TestF052TwoProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	_, err := s.DB().Exec(`CREATE TABLE effects (k TEXT NOT NULL)`)
	require.NoError(t, err)
	const keys = 300

	// Both processes get the same keys.
	other := start(t, order{Role: "work", Path: w.path, From: 0, Keys: keys})
	desk := make(chan error, 1)
	done, stop := context.WithCancel(t.Context())
	go func() { desk <- listAndClean(done, s) }()
	mine := work(t.Context(), s, 0, keys)
	var theirs report
	require.NoError(t, json.Unmarshal([]byte(other.line(t)), &theirs))
	stop()
	require.NoError(t, <-desk)

	require.Empty(t, mine.Errors)
	require.Empty(t, theirs.Errors)
	require.Equal(t, keys, mine.Fresh+theirs.Fresh)
	require.Equal(t, keys+2*keys/5, mine.Duplicates+theirs.Duplicates)
	t.Logf("fresh %d and %d; worst wait %s and %s", mine.Fresh, theirs.Fresh, mine.Worst, theirs.Worst)
	require.Less(t, max(mine.Worst, theirs.Worst), 5*time.Second, "a writer starved")
	var effects, distinct int
	require.NoError(t, s.DB().QueryRow(`SELECT count(*), count(DISTINCT k) FROM effects`).Scan(&effects, &distinct))
	require.Equal(t, keys, effects)
	require.Equal(t, keys, distinct)
}

func listAndClean(ctx context.Context, s *sqlitestore.Store) error {
	for ctx.Err() == nil {
		if _, err := s.Keys().List(ctx, keystore.Filter{Scope: "s"}); err != nil && ctx.Err() == nil {
			return fmt.Errorf("list: %w", err)
		}
		if _, err := s.Keys().Clean(ctx, "s", 100); err != nil && ctx.Err() == nil {
			return fmt.Errorf("clean: %w", err)
		}
	}
	return nil
}

// TestKilledWriterGivesItsTurnFree: the operating system frees the turn of a process that dies.
func TestKilledWriterGivesItsTurnFree(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	other := start(t, order{Role: "hold", Path: w.path})
	require.Equal(t, "holding\n", other.line(t))

	_, err := s.Keys().Begin(t.Context(), keystore.TxOptions{LockTimeout: 200 * time.Millisecond})
	require.Error(t, err)
	require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
	records, err := s.Keys().List(t.Context(), keystore.Filter{})
	require.NoError(t, err, "reading goes on beside the writer")
	require.Empty(t, records)

	other.kill()
	tx, err := s.Keys().Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{{ID: keystore.ID{Scope: "s", Key: "held"}}})
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome, "what the killed one had not committed is gone")
	require.NoError(t, tx.Rollback())
}

// TestF054ManyReplicasMigrateAtOnce: on an empty file, twenty rounds; in some of them a further one is killed while it migrates.
func TestF054ManyReplicasMigrateAtOnce(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		path := t.TempDir() + "/test.db"
		if round%7 == 3 {
			victim := start(t, order{Role: "migrate", Path: path})
			require.Equal(t, "migrating\n", victim.line(t))
			time.AfterFunc(time.Duration(round)*20*time.Millisecond, victim.kill)
		}
		var wg sync.WaitGroup
		errs := make([]error, 6)
		for i := range errs {
			wg.Go(func() { errs[i] = migrateOnce(t.Context(), path) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err, "round %d", round)
		}
		s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path}, store.Options{})
		require.NoError(t, err)
		pending, err := s.Pending(t.Context(), []store.MigrationSet{slowSet()})
		require.NoError(t, err)
		require.Empty(t, pending)
		var versions, rows int
		require.NoError(t, s.DB().QueryRow(`SELECT (SELECT count(*) FROM oncemill_version_store WHERE version_id = 1), (SELECT count(*) FROM slow)`).Scan(&versions, &rows))
		require.Equal(t, 1, versions)
		require.Equal(t, 1, rows, "the plugin's migration ran once")
		require.NoError(t, s.Close())
	}
}

func migrateOnce(ctx context.Context, path string) error {
	s, err := sqlitestore.Open(ctx, sqlitestore.Config{Path: path}, store.Options{})
	if err != nil {
		return err
	}
	if err := s.Migrate(ctx, []store.MigrationSet{slowSet()}); err != nil {
		return err
	}
	return s.Close()
}
