package pgstore_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var errNobody = errors.New("not yet")

func claimOf(key string) keystore.Claim {
	return keystore.Claim{ID: keystore.ID{Scope: "s", Key: key}, Fingerprint: "payload:1:x"}
}

func completed(key string) []keystore.Completion {
	return []keystore.Completion{{Claim: claimOf(key), State: keystore.Completed, Retention: time.Hour}}
}

func begin(t *testing.T, s *pgstore.Store, opts keystore.TxOptions) keystore.Tx {
	t.Helper()
	tx, err := s.Keys().Begin(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func claimKey(t *testing.T, tx keystore.Tx, key string) keystore.Outcome {
	t.Helper()
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{claimOf(key)})
	require.NoError(t, err)
	return verdicts[0].Outcome
}

func run(t *testing.T, s *pgstore.Store, query string, args ...any) {
	t.Helper()
	_, err := s.DB().ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

// behindProxy opens the world's database through a proxy.
func (w *world) behindProxy(t *testing.T, c pgstore.Config) (*pgstore.Store, *testenv.TCPProxy) {
	t.Helper()
	u, err := url.Parse(w.db.DSN)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	c.DSN = u.String()
	s, err := pgstore.Open(t.Context(), c, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, proxy
}

func TestClassifyRealErrors(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	classify := s.Keys().Classify
	run(t, s, `CREATE TABLE rows (id int PRIMARY KEY, n int); INSERT INTO rows VALUES (1, 0), (2, 0)`)

	t.Run("lock timeout", func(t *testing.T) {
		one, two := begin(t, s, keystore.TxOptions{}), begin(t, s, keystore.TxOptions{LockTimeout: 50 * time.Millisecond})
		_, err := one.SQL().Exec(`UPDATE rows SET n = 1 WHERE id = 1`)
		require.NoError(t, err)
		_, err = two.SQL().Exec(`UPDATE rows SET n = 2 WHERE id = 1`)
		require.Equal(t, keystore.FaultContention, classify(err), "%v", err)
		require.NoError(t, one.Rollback())
		require.NoError(t, two.Rollback())
	})
	t.Run("serialization", func(t *testing.T) {
		opts := keystore.TxOptions{Isolation: "serializable"}
		one, two := begin(t, s, opts), begin(t, s, opts)
		for _, tx := range []keystore.Tx{one, two} {
			var sum int
			require.NoError(t, tx.SQL().Get(&sum, `SELECT sum(n) FROM rows`))
		}
		_, err := one.SQL().Exec(`UPDATE rows SET n = n + 1 WHERE id = 1`)
		require.NoError(t, err)
		_, err = two.SQL().Exec(`UPDATE rows SET n = n + 1 WHERE id = 2`)
		require.NoError(t, err)
		require.NoError(t, one.Commit(t.Context(), nil))
		err = two.Commit(t.Context(), nil)
		require.Equal(t, keystore.FaultContention, classify(err), "%v", err)
		require.NotErrorIs(t, err, keystore.ErrOutcomeUnknown, "the server said that it was not committed")
	})
	t.Run("terminated", func(t *testing.T) {
		tx := begin(t, s, keystore.TxOptions{})
		var pid int
		require.NoError(t, tx.SQL().Get(&pid, `SELECT pg_backend_pid()`))
		run(t, s, `SELECT pg_terminate_backend($1)`, pid)
		require.Eventually(t, func() bool {
			_, err := tx.SQL().Exec(`SELECT 1`)
			return err != nil && classify(err) == keystore.FaultUnavailable
		}, 10*time.Second, time.Millisecond)
		_, err := tx.Claim(t.Context(), []keystore.Claim{claimOf("x")})
		require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
		require.NoError(t, tx.Rollback())
	})
	t.Run("cut", func(t *testing.T) {
		far, proxy := w.behindProxy(t, pgstore.Config{})
		tx := begin(t, far, keystore.TxOptions{})
		require.Equal(t, keystore.Fresh, claimKey(t, tx, "cut"))
		proxy.Cut()
		_, err := tx.SQL().Exec(`SELECT 1`)
		require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
		require.NoError(t, tx.Rollback())
		err = far.Ping(t.Context())
		require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
		_, err = far.Keys().Count(t.Context(), claimOf("cut").ID, keystore.Failure{})
		require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
		proxy.Restore()
		testenv.Eventually(t, 10*time.Second, func() error { return far.Ping(t.Context()) })
		require.Equal(t, keystore.Fresh, claimKey(t, begin(t, far, keystore.TxOptions{}), "cut"))
	})
	t.Run("the caller's own end", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		tx := begin(t, s, keystore.TxOptions{})
		_, err := tx.SQL().ExecContext(ctx, `SELECT pg_sleep(10)`)
		require.Error(t, err)
		require.Equal(t, keystore.FaultOther, classify(err), "%v", err)
		require.NoError(t, tx.Rollback())
	})
	require.Equal(t, keystore.FaultOther, classify(nil))
	require.Equal(t, keystore.FaultOther, classify(errors.New("x")))
}

// TestConnectionLostDuringCommit: the commit takes a second in the server, and the connection goes meanwhile. The outcome is unknown to
// the one who committed; a new claim waits for it and finds out.
func TestConnectionLostDuringCommit(t *testing.T) {
	t.Parallel()
	for _, fate := range []string{"commits", "fails"} {
		t.Run(fate, func(t *testing.T) {
			t.Parallel()
			w, s := newWorld(t)
			failing := ``
			if fate == "fails" {
				failing = `RAISE EXCEPTION 'no';`
			}
			run(t, s, `CREATE TABLE slow (k text);
				CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); `+failing+` RETURN NULL; END $$;
				CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
			far, proxy := w.behindProxy(t, pgstore.Config{})
			tx := begin(t, far, keystore.TxOptions{})
			require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
			_, err := tx.SQL().Exec(`INSERT INTO slow VALUES ('a')`)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- tx.Commit(t.Context(), completed("a")) }()
			testenv.Eventually(t, 10*time.Second, func() error { return committing(t, s) })
			proxy.Cut()
			err = <-ended
			require.ErrorIs(t, err, keystore.ErrOutcomeUnknown)

			plain := peek(t, s, "a")
			require.Equal(t, keystore.Absent, plain.State, "a look-up knows nothing of a commit on its way")
			want := map[string]keystore.Outcome{"commits": keystore.Duplicate, "fails": keystore.Fresh}[fate]
			require.Equal(t, want, claimKey(t, begin(t, s, keystore.TxOptions{}), "a"))
		})
	}
}

// committing returns nil once the trigger sleeps within COMMIT.
func committing(t *testing.T, s *pgstore.Store) error {
	t.Helper()
	var n int
	require.NoError(t, s.DB().Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'commit' AND wait_event = 'PgSleep' AND application_name = current_setting('application_name')`))
	if n == 0 {
		return errNobody
	}
	return nil
}

func TestCommitUnderACancelledContext(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	run(t, s, `CREATE TABLE slow (k text);
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	tx := begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
	_, err := tx.SQL().Exec(`INSERT INTO slow VALUES ('a')`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tx.Commit(ctx, completed("a")) }()
	testenv.Eventually(t, 10*time.Second, func() error { return committing(t, s) })
	cancel()
	require.ErrorIs(t, <-ended, keystore.ErrOutcomeUnknown)

	tx = begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "b"))
	err = tx.Commit(ctx, completed("b"))
	require.Error(t, err)
	require.NotErrorIs(t, err, keystore.ErrOutcomeUnknown, "nothing was sent")
	require.Equal(t, keystore.Absent, peek(t, s, "b").State)
}

// TestF043PoolOfOne: with one connection nothing waits for a second, and an abandoned transaction gives it back.
func TestF043PoolOfOne(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: db.DSN, MaxOpen: 1}, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, s.Migrate(ctx, nil))
	s.Outbox().Wake()
	for _, key := range []string{"a", "b", "c"} {
		abandoned, stop := context.WithCancel(ctx)
		tx, err := s.Keys().Begin(abandoned, keystore.TxOptions{})
		require.NoError(t, err)
		verdicts, err := tx.Claim(ctx, []keystore.Claim{claimOf(key)})
		require.NoError(t, err)
		require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
		stop() // nobody rolls back

		next, err := s.Keys().Begin(ctx, keystore.TxOptions{})
		require.NoError(t, err, "the connection came back by itself")
		_, err = tx.Claim(ctx, []keystore.Claim{claimOf("stray")})
		require.Error(t, err, "a statement after the end runs nowhere")
		require.Error(t, tx.Commit(ctx, nil))
		verdicts, err = next.Claim(ctx, []keystore.Claim{claimOf(key)})
		require.NoError(t, err)
		require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
		done := completed(key)
		done[0].Outbox = []outbox.Record{{Topic: "t", UUID: key, Key: key}}
		require.NoError(t, next.Commit(ctx, done))
	}
	require.Equal(t, keystore.Absent, peek(t, s, "stray").State)
	records, err := s.Outbox().List(ctx, false, 10)
	require.NoError(t, err)
	require.Len(t, records, 3)
}

// TestWakesOtherProcesses: a commit of one process wakes the relay of another, long before it would poll; its own channel is woken at once.
func TestWakesOtherProcesses(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	other := w.open(t)
	wake := other.Outbox().Wake()
	<-wake // it listens now
	for _, key := range []string{"a", "b"} {
		tx := begin(t, s, keystore.TxOptions{})
		require.Equal(t, keystore.Fresh, claimKey(t, tx, key))
		done := completed(key)
		done[0].Outbox = []outbox.Record{{Topic: "t", UUID: key, Key: key}}
		require.NoError(t, tx.Commit(t.Context(), done))
		select {
		case <-wake:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the other process was not woken")
		}
	}
}
