package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

func claimOf(key string) keystore.Claim {
	return keystore.Claim{ID: keystore.ID{Scope: "s", Key: key}, Fingerprint: "payload:1:x"}
}

func completed(key string) []keystore.Completion {
	return []keystore.Completion{{Claim: claimOf(key), State: keystore.Completed, Retention: time.Hour}}
}

func begin(t *testing.T, s *mysqlstore.Store, opts keystore.TxOptions) keystore.Tx {
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

func run(t *testing.T, s *mysqlstore.Store, query string, args ...any) {
	t.Helper()
	_, err := s.DB().ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

func peek(t *testing.T, s *mysqlstore.Store, key string) keystore.Record {
	t.Helper()
	records, err := s.Keys().Peek(t.Context(), []keystore.ID{{Scope: "s", Key: key}})
	require.NoError(t, err)
	return records[0]
}

// behindProxy opens the world's database through a proxy.
func (w *world) behindProxy(t *testing.T, c mysqlstore.Config) (*mysqlstore.Store, *testenv.TCPProxy) {
	t.Helper()
	proxy := testenv.Proxy(t, w.db.Addr)
	c.DSN = strings.Replace(w.db.DSN, w.db.Addr, proxy.Addr, 1)
	s, err := mysqlstore.Open(t.Context(), c, store.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, proxy
}

func withRows(t *testing.T) (*world, *mysqlstore.Store) {
	t.Helper()
	w, s := newWorld(t)
	run(t, s, `CREATE TABLE counts (id int PRIMARY KEY, n int NOT NULL)`)
	run(t, s, `INSERT INTO counts VALUES (1, 0), (2, 0)`)
	return w, s
}

func count(t *testing.T, s *mysqlstore.Store, id int) (n int) {
	t.Helper()
	require.NoError(t, s.DB().Get(&n, `SELECT n FROM counts WHERE id = ?`, id))
	return n
}

func TestLockTimeoutIsContention(t *testing.T) {
	t.Parallel()
	_, s := withRows(t)
	one, two := begin(t, s, keystore.TxOptions{}), begin(t, s, keystore.TxOptions{LockTimeout: 50 * time.Millisecond})
	_, err := one.SQL().Exec(`UPDATE counts SET n = 1 WHERE id = 1`)
	require.NoError(t, err)
	began := time.Now()
	_, err = two.SQL().Exec(`UPDATE counts SET n = 2 WHERE id = 1`)
	require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
	require.Less(t, time.Since(began), 3*time.Second, "the server's default is 50 s, the store's 3 s")
}

// TestDeadlockEndsTheTransaction: the server has rolled back all of it, and no later statement may commit by itself, not even for
// a handler that hides the error.
func TestDeadlockEndsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"exec", "query", "prepared"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			_, s := withRows(t)
			tx, err := deadlocked(t, s, how)
			require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
			_, err = tx.SQL().Exec(`UPDATE counts SET n = 77 WHERE id = 2`)
			require.Error(t, err)
			require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
			err = tx.Commit(t.Context(), completed("mine"))
			require.Equal(t, keystore.FaultContention, s.Keys().Classify(err), "%v", err)
			require.NotErrorIs(t, err, keystore.ErrOutcomeUnknown)
			require.NotEqual(t, 77, count(t, s, 2))
			require.Equal(t, keystore.Absent, peek(t, s, "mine").State)
			require.Equal(t, keystore.Fresh, claimKey(t, begin(t, s, keystore.TxOptions{}), "mine"))
		})
	}
}

// deadlocked returns a transaction that the server chose as the victim of a deadlock, and what it was told.
func deadlocked(t *testing.T, s *mysqlstore.Store, how string) (keystore.Tx, error) {
	t.Helper()
	victim, rival := begin(t, s, keystore.TxOptions{LockTimeout: 20 * time.Second}), begin(t, s, keystore.TxOptions{LockTimeout: 20 * time.Second})
	// The rival has written more, so that the server spares it.
	_, err := rival.SQL().Exec(`INSERT INTO counts WITH RECURSIVE g(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM g WHERE n < 500) SELECT n, 0 FROM g`)
	require.NoError(t, err)
	_, err = rival.SQL().Exec(`UPDATE counts SET n = 1 WHERE id = 1`)
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, claimKey(t, victim, "mine"))
	_, err = victim.SQL().Exec(`UPDATE counts SET n = 2 WHERE id = 2`)
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() { waiting <- victimStep(victim.SQL().Tx, how) }()
	_, err = rival.SQL().Exec(`UPDATE counts SET n = 1 WHERE id = 2`)
	require.NoError(t, err, "the rival is spared")
	require.NoError(t, rival.Rollback())
	return victim, <-waiting
}

func victimStep(tx *sql.Tx, how string) error {
	switch how {
	case "query":
		var n int
		return tx.QueryRow(`SELECT n FROM counts WHERE id = 1 FOR UPDATE`).Scan(&n)
	case "prepared":
		stmt, err := tx.Prepare(`UPDATE counts SET n = ? WHERE id = 1`)
		if err != nil {
			return err
		}
		defer func() { _ = stmt.Close() }()
		_, err = stmt.Exec(3)
		return err
	}
	_, err := tx.Exec(`UPDATE counts SET n = 3 WHERE id = 1`)
	return err
}

// TestHandlersCannotEndTheTransaction: MySQL would commit at such a statement, before the key is written.
func TestHandlersCannotEndTheTransaction(t *testing.T) {
	t.Parallel()
	_, s := withRows(t)
	for _, query := range []string{"CREATE TABLE x (n int)", "  truncate counts", "COMMIT", "start transaction", "LOCK TABLES counts READ", "drop table counts"} {
		tx := begin(t, s, keystore.TxOptions{})
		require.Equal(t, keystore.Fresh, claimKey(t, tx, "a"))
		_, err := tx.SQL().Exec(`UPDATE counts SET n = 5 WHERE id = 1`)
		require.NoError(t, err)
		_, err = tx.SQL().Exec(query)
		require.ErrorContains(t, err, "ends the transaction", query)
		require.NoError(t, tx.Rollback())
		require.Zero(t, count(t, s, 1), query)
		require.Equal(t, keystore.Absent, peek(t, s, "a").State)
	}
}

func TestTerminatedConnection(t *testing.T) {
	t.Parallel()
	_, s := withRows(t)
	tx := begin(t, s, keystore.TxOptions{})
	var id int64
	require.NoError(t, tx.SQL().Get(&id, `SELECT connection_id()`))
	run(t, s, `KILL ?`, id)
	require.Eventually(t, func() bool {
		_, err := tx.SQL().Exec(`DO 1`)
		return err != nil && s.Keys().Classify(err) == keystore.FaultUnavailable
	}, 10*time.Second, time.Millisecond)
	_, err := tx.Claim(t.Context(), []keystore.Claim{claimOf("x")})
	require.Equal(t, keystore.FaultUnavailable, s.Keys().Classify(err), "%v", err)
	err = tx.Commit(t.Context(), nil)
	require.Equal(t, keystore.FaultUnavailable, s.Keys().Classify(err), "%v", err)
	require.NoError(t, s.Ping(t.Context()), "the pool has another")
}

func TestCutConnection(t *testing.T) {
	t.Parallel()
	w, s := withRows(t)
	classify := s.Keys().Classify
	far, proxy := w.behindProxy(t, mysqlstore.Config{})
	tx := begin(t, far, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "cut"))
	proxy.Cut()
	_, err := tx.SQL().Exec(`DO 1`)
	require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
	_ = tx.Rollback()
	err = far.Ping(t.Context())
	require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
	_, err = far.Keys().Count(t.Context(), claimOf("cut").ID, keystore.Failure{})
	require.Equal(t, keystore.FaultUnavailable, classify(err), "%v", err)
	proxy.Restore()
	testenv.Eventually(t, 10*time.Second, func() error { return far.Ping(t.Context()) })
	require.Equal(t, keystore.Fresh, claimKey(t, begin(t, far, keystore.TxOptions{}), "cut"))
}

func TestClassifyOther(t *testing.T) {
	t.Parallel()
	_, s := withRows(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	tx := begin(t, s, keystore.TxOptions{})
	_, err := tx.SQL().ExecContext(ctx, `DO sleep(10)`)
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(err), "the caller's own end: %v", err)
	_, err = s.DB().Exec(`INSERT INTO counts VALUES (1, 0)`)
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(err), "%v", err)
	_, err = s.DB().Exec(`INSERT INTO counts VALUES (3, 4000000000)`)
	require.Error(t, err, "strict: a number that does not fit is refused, not cut")
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(err), "%v", err)
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(nil))
	require.Equal(t, keystore.FaultOther, s.Keys().Classify(errors.New("x")))
}

// TestConnectionLostDuringCommit: a lock of the whole server holds the commit up, and the connection goes meanwhile. The outcome is
// unknown to the one who committed, and it may be either.
func TestConnectionLostDuringCommit(t *testing.T) {
	t.Parallel()
	server := testenv.Private(t, "mariadb")
	w := &world{db: testenv.MySQLDatabase{DSN: server.Address, Addr: server.Address[strings.Index(server.Address, "(")+1 : strings.Index(server.Address, ")")]}}
	s := w.open(t)
	require.NoError(t, s.Migrate(t.Context(), nil))
	run(t, s, `CREATE TABLE fates (fate varchar(20))`)
	far, proxy := w.behindProxy(t, mysqlstore.Config{})
	for fate, want := range map[string]int{"commits": 1, "is killed": 0, "is cancelled": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		tx := begin(t, far, keystore.TxOptions{})
		_, err := tx.SQL().Exec(`INSERT INTO fates VALUES (?)`, fate)
		require.NoError(t, err)
		var id int64
		require.NoError(t, tx.SQL().Get(&id, `SELECT connection_id()`))
		blocker, err := s.DB().Connx(t.Context())
		require.NoError(t, err)
		_, err = blocker.ExecContext(t.Context(), `FLUSH TABLES WITH READ LOCK`)
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() { ended <- tx.Commit(ctx, nil) }()
		testenv.Eventually(t, 10*time.Second, func() error { return committing(t, s, id) })
		switch fate {
		case "commits":
			proxy.Cut()
		case "is killed":
			run(t, s, `KILL ?`, id)
		case "is cancelled":
			cancel()
		}
		require.ErrorIs(t, <-ended, keystore.ErrOutcomeUnknown, fate)
		_, err = blocker.ExecContext(t.Context(), `UNLOCK TABLES`)
		require.NoError(t, err)
		require.NoError(t, blocker.Close())
		testenv.Eventually(t, 10*time.Second, func() error { return gone(t, s, id) })
		var rows int
		require.NoError(t, s.DB().Get(&rows, `SELECT count(*) FROM fates WHERE fate = ?`, fate))
		require.Equal(t, want, rows, fate)
		cancel()
		if fate == "commits" {
			proxy.Restore()
		}
	}
}

// committing returns nil once a connection is within COMMIT.
func committing(t *testing.T, s *mysqlstore.Store, id int64) error {
	t.Helper()
	var n int
	require.NoError(t, s.DB().Get(&n, `SELECT count(*) FROM information_schema.processlist WHERE id = ? AND info = 'COMMIT'`, id))
	if n == 0 {
		return errors.New("it does not commit")
	}
	return nil
}

// gone returns nil once the server has ended a connection.
func gone(t *testing.T, s *mysqlstore.Store, id int64) error {
	t.Helper()
	var n int
	require.NoError(t, s.DB().Get(&n, `SELECT count(*) FROM information_schema.processlist WHERE id = ?`, id))
	if n > 0 {
		return errors.New("it is still there")
	}
	return nil
}

// TestCommitUnderAnEndedContext: nothing is sent, so the outcome is known.
func TestCommitUnderAnEndedContext(t *testing.T) {
	t.Parallel()
	_, s := newWorld(t)
	tx := begin(t, s, keystore.TxOptions{})
	require.Equal(t, keystore.Fresh, claimKey(t, tx, "b"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := tx.Commit(ctx, completed("b"))
	require.Error(t, err)
	require.NotErrorIs(t, err, keystore.ErrOutcomeUnknown)
	require.Equal(t, keystore.Absent, peek(t, s, "b").State)
}

// TestF043PoolOfOne: with one connection nothing waits for a second, and an abandoned transaction gives it back.
func TestF043PoolOfOne(t *testing.T) {
	t.Parallel()
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: testenv.MySQL(t).DSN, MaxOpen: 1}, store.Options{})
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
