package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Deadlocks and serialization failures use up no attempt: rows updated in opposite order, under three attempts.
func TestF040ConflictsAreNoFailures(t *testing.T) {
	for _, isolation := range []string{"read committed", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				_, err := h.DB().ExecContext(t.Context(), `CREATE TABLE accounts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)`)
				require.NoError(t, err)
				_, err = h.DB().ExecContext(t.Context(), `INSERT INTO accounts VALUES (1, 0), (2, 0)`)
				require.NoError(t, err)
				// The first of each kind meet between their two updates, so that each then waits for the other's row.
				meeting := map[string]chan struct{}{"even": make(chan struct{}), "odd": make(chan struct{})}
				first := map[string]*sync.Once{"even": {}, "odd": {}}
				meet := func(kind, other string) {
					first[kind].Do(func() {
						close(meeting[kind])
						select {
						case <-meeting[other]:
						case <-time.After(2 * time.Second): // the other waits for a lock that this one has already
						}
					})
				}
				b := idempotency.Binding{
					Isolation: isolation, Retry: idempotency.Retry{Attempts: 3, Contention: time.Minute},
					Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
						order, other := []int{1, 2}, "odd"
						if string(msg.Payload) == "odd" {
							order, other = []int{2, 1}, "even"
						}
						for n, id := range order {
							if n == 1 && !h.sqlite() { // it has one writer
								meet(string(msg.Payload), other)
							}
							if _, err := tx.ExecContext(ctx, tx.Rebind(`UPDATE accounts SET n = n + 1 WHERE id = ?`), id); err != nil {
								return nil, errors.New("the update failed") // a disguise that helps nothing
							}
						}
						return nil, nil
					}}
				one, two := h.newEngine(t, b), h.newEngine(t, b, on(h.open(t, 0)))
				const n = 12
				var msgs []*message.Message
				for i := range n {
					msgs = append(msgs, newMessage(fmt.Sprintf("key-%d", i), []string{"even", "odd"}[i%2]))
				}
				waitOne, waitTwo := one.deliver(msgs[:n/2]...), two.deliver(msgs[n/2:]...)
				for _, err := range append(waitOne(), waitTwo()...) {
					require.NoError(t, err)
				}
				require.Equal(t, n, h.count(t, `SELECT n FROM accounts WHERE id = 1`))
				require.Equal(t, n, h.count(t, `SELECT n FROM accounts WHERE id = 2`))
				require.Empty(t, h.rows(t))
				require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`))
				if !h.sqlite() {
					require.Positive(t, one.events(idempotency.EventContention)+two.events(idempotency.EventContention), "the test must provoke conflicts")
				}
			})
		})
	}
}

// After a conflict messages are tried one at a time: together they would meet again and again, while each deadlock costs a second.
func TestF040RetriesAfterAConflictRunAlone(t *testing.T) {
	t.Parallel()
	h := onPostgres(t)
	const n = 8
	var met sync.Map
	var inside, retries atomic.Int64
	e := h.newEngine(t, idempotency.Binding{Concurrency: n, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		if _, again := met.LoadOrStore(tx.Key(), true); !again {
			_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`)
			return nil, err
		}
		if now := inside.Add(1); now != 1 {
			t.Errorf("%d messages are tried again at the same time", now)
		}
		defer inside.Add(-1)
		retries.Add(1)
		time.Sleep(5 * time.Millisecond) // long enough for the others to come in
		return effect(ctx, tx, msg)
	}})
	var msgs []*message.Message
	for i := range n {
		msgs = append(msgs, newMessage(fmt.Sprintf("key-%d", i), "1"))
	}
	for _, err := range e.deliver(msgs...)() {
		require.NoError(t, err)
	}
	require.EqualValues(t, n, retries.Load())
	require.Equal(t, n, h.effects(t))
}

// A driver's error decides, whatever the handler makes of it: here a serialization failure that it swallows, disguises, or
// meets where the engine does not see it, in a prepared statement.
func TestF040HiddenConflict(t *testing.T) {
	for name, disguise := range map[string]func(error) error{
		"swallowed": func(error) error { return nil },
		"disguised": func(error) error { return errors.New("something went wrong") },
		"permanent": func(error) error { return refusal{"no"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := onPostgres(t)
			var calls atomic.Int64
			e := h.newEngine(t, idempotency.Binding{
				Retry: idempotency.Retry{Attempts: 1},
				Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
					if calls.Add(1) == 1 {
						_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`)
						return nil, disguise(err)
					}
					return effect(ctx, tx, msg)
				}})
			e.acked(t, newMessage("key", "1"))
			require.Equal(t, 1, h.effects(t))
			require.Equal(t, 1, e.events(idempotency.EventContention))
			require.Empty(t, h.rows(t))
		})
	}
}

func TestF040ConflictInAPreparedStatement(t *testing.T) {
	t.Parallel()
	h := onPostgres(t)
	var calls atomic.Int64
	e := h.newEngine(t, idempotency.Binding{
		Retry: idempotency.Retry{Attempts: 1},
		Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			stmt, err := tx.PrepareContext(ctx, `INSERT INTO effects (k, v) SELECT $1, $2`)
			if err != nil {
				return nil, err
			}
			defer func() { _ = stmt.Close() }()
			if calls.Add(1) == 1 {
				if _, err := tx.ExecContext(ctx, `CREATE FUNCTION pg_temp.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE SQLSTATE '40P01'; END $$`); err != nil {
					return nil, err
				}
				if _, err := tx.ExecContext(ctx, `CREATE TRIGGER fail BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION pg_temp.fail()`); err != nil {
					return nil, err
				}
			}
			if _, err := stmt.ExecContext(ctx, tx.Key(), "1"); err != nil {
				return nil, fmt.Errorf("insert: %w", err)
			}
			return nil, nil
		}})
	e.acked(t, newMessage("key", "1"))
	require.Equal(t, 1, h.effects(t))
	require.Equal(t, 1, e.events(idempotency.EventContention))
}

// When the budget for conflicts is used up the message waits in parking, still without an attempt counted.
func TestF040ContentionBudget(t *testing.T) {
	t.Parallel()
	h := onPostgres(t)
	var conflict atomic.Bool
	conflict.Store(true)
	e := h.newEngine(t, idempotency.Binding{
		Retry: idempotency.Retry{Attempts: 1, Contention: 50 * time.Millisecond},
		Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if conflict.Load() {
				_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`)
				return nil, err
			}
			return effect(ctx, tx, msg)
		}})
	e.acked(t, newMessage("key", "1"))
	rows := h.rows(t)
	require.Len(t, rows, 1)
	require.Equal(t, parking.Waiting, rows[0].State)
	require.Zero(t, rows[0].Attempts)
	conflict.Store(false)
	h.feedNow(t, e)
	require.Equal(t, 1, h.effects(t))
}

// A writer outside of the program holds SQLite's file: no attempt is used up.
func TestF040SQLiteBusy(t *testing.T) {
	t.Parallel()
	h := onSQLite(t)
	e := h.newEngine(t, idempotency.Binding{Handler: effect, LockTimeout: 30 * time.Millisecond, Retry: idempotency.Retry{Attempts: 1, Contention: time.Minute}})
	other, err := h.open(t, 0).Keys().Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	wait := e.deliver(newMessage("key", "1"))
	eventually(t, "the engine meets the other writer", func() bool { return e.events(idempotency.EventContention) >= 2 })
	require.NoError(t, other.Rollback())
	require.NoError(t, wait()[0])
	require.Equal(t, 1, h.effects(t))
	require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`))
}
