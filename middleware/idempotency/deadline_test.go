package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Handlers that do not look at their context lose their slots and their transactions, and can commit nothing any more.
func TestF032HandlerIgnoresItsDeadline(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const slots = 4
		wake := make(chan struct{})
		late := make(chan error, slots)
		e := h.newEngine(t, idempotency.Binding{
			Concurrency: slots, Timeout: 500 * time.Millisecond, Retry: idempotency.Retry{InProcess: -1},
			Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				if string(msg.Payload) == "good" {
					return effect(ctx, tx, msg)
				}
				if !h.sqlite() { // its one writer would keep the others waiting
					if _, err := effect(ctx, tx, msg); err != nil {
						return nil, err
					}
				}
				<-wake
				_, err := effect(context.WithoutCancel(ctx), tx, msg)
				late <- err
				return nil, nil
			}})
		var msgs []*message.Message
		for i := range slots {
			msgs = append(msgs, newMessage(fmt.Sprintf("stuck-%d", i), "stuck"))
		}
		for _, err := range e.deliver(msgs...)() {
			require.NoError(t, err)
		}
		// All slots are free again although all four handlers are stuck.
		e.acked(t, newMessage("good", "good"))
		require.Equal(t, slots, e.events(idempotency.EventAbandoned))
		require.Zero(t, e.events(idempotency.EventAbandonedOK))
		rows := h.rows(t)
		require.Len(t, rows, slots)
		require.Equal(t, "deadline", rows[0].Reason)
		require.Equal(t, 1, rows[0].Attempts)

		// A stop does not wait for them.
		e.Stop()
		require.NoError(t, e.Wait(t.Context()))
		close(wake)
		for range slots {
			require.ErrorIs(t, <-late, idempotency.ErrTxClosed)
		}
		eventually(t, "the metric of stuck handlers goes back", func() bool { return e.events(idempotency.EventAbandonedOK) == slots })
		require.Equal(t, 1, h.effects(t))
	})
}

// A handler that hangs in a statement, on a context of its own, is cut off there: its connection does not hang with it.
func TestF032HandlerHangsInAStatement(t *testing.T) {
	t.Parallel()
	h := onPostgres(t)
	ended := make(chan error, 1)
	e := h.newEngine(t, idempotency.Binding{
		Timeout: 100 * time.Millisecond, Retry: idempotency.Retry{InProcess: -1},
		Handler: func(_ context.Context, tx *idempotency.Tx, _ *message.Message) (any, error) {
			_, err := tx.ExecContext(context.Background(), `SELECT pg_sleep(600)`)
			ended <- err
			return nil, err
		}})
	began := time.Now()
	e.acked(t, newMessage("key", "1"))
	require.Less(t, time.Since(began), patience)
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(patience):
		require.FailNow(t, "the statement was not cut off")
	}
	require.Len(t, h.rows(t, parking.Waiting), 1)
}

// A success after the deadline is none: the engine decided already.
func TestF032LateSuccess(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{
			Timeout: 300 * time.Millisecond,
			Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				if _, err := effect(ctx, tx, msg); err != nil || calls.Add(1) > 1 {
					return nil, err
				}
				<-ctx.Done()
				return nil, nil
			}})
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 1, h.effects(t))
		require.Positive(t, e.events("retried:deadline"))
	})
}

// An abandoned handler that panics later takes nobody with it.
func TestF032AbandonedHandlerPanics(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		wake := make(chan struct{})
		e := h.newEngine(t, idempotency.Binding{
			Timeout: 20 * time.Millisecond, Retry: idempotency.Retry{Attempts: 1},
			Handler: func(context.Context, *idempotency.Tx, *message.Message) (any, error) {
				<-wake
				panic("long after")
			}})
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, "deadline", h.dead(t).Reason)
		close(wake)
		eventually(t, "it has returned", func() bool { return e.events(idempotency.EventAbandonedOK) == 1 })
	})
}

// The façade is closed when its handler has returned, whatever of it the handler kept.
func TestTxIsClosedAfterTheHandler(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var kept *idempotency.Tx
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			kept = tx
			return effect(ctx, tx, msg)
		}})
		e.acked(t, newMessage("key", "1"))
		ctx := t.Context()
		_, err := kept.ExecContext(ctx, `DELETE FROM effects`)
		require.ErrorIs(t, err, idempotency.ErrTxClosed)
		_, err = kept.PrepareContext(ctx, `DELETE FROM effects`) //nolint:sqlclosecheck // there is none
		require.ErrorIs(t, err, idempotency.ErrTxClosed)
		rows, err := kept.QueryContext(ctx, `SELECT k FROM effects`) //nolint:rowserrcheck,sqlclosecheck // there are none
		require.Nil(t, rows)
		require.ErrorIs(t, err, idempotency.ErrTxClosed)
		rowsx, err := kept.QueryxContext(ctx, `SELECT k FROM effects`) //nolint:rowserrcheck,sqlclosecheck // there are none
		require.Nil(t, rowsx)
		require.ErrorIs(t, err, idempotency.ErrTxClosed)
		var n int
		require.Error(t, kept.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n))
		require.Error(t, kept.QueryRowxContext(ctx, `SELECT count(*) FROM effects`).Scan(&n))
		require.ErrorIs(t, kept.Publish(ctx, "late", "x"), idempotency.ErrTxClosed)
		kept.AfterCommit(func(context.Context) { t.Error("a hook of a closed transaction ran") })
		kept.Defer(nil, `DELETE FROM effects`)
		kept.SetResult("late")
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.outgoing(t))
	})
}

// A rollback costs no connection, on a pool of the caller's either: duplicates and failures are ordinary.
func TestRollbackKeepsTheConnection(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	h := newHarness(t, postgresOpener(db, db.DSN))
	pool, err := sqlx.Open("pgx", db.DSN)
	require.NoError(t, err)
	pool.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = pool.Close() })
	var backends []int
	var calls atomic.Int64
	e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, _ *message.Message) (any, error) {
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return nil, err
		}
		backends = append(backends, pid)
		if calls.Add(1)%2 == 0 {
			return nil, errors.New("fails")
		}
		return nil, nil
	}}, on(pgstore.New(pool, pgstore.Config{})))
	for i := range 4 {
		key := fmt.Sprintf("key-%d", i)
		e.acked(t, newMessage(key, "1"), newMessage(key, "1"), newMessage(key, "other"))
	}
	require.GreaterOrEqual(t, len(backends), 6)
	for _, pid := range backends {
		require.Equal(t, backends[0], pid, "the pool's one connection was replaced")
	}
	require.Equal(t, keystore.Completed, h.key(t, scope, "key-3").State)
}
