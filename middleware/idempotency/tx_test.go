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

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// What a handler publishes has the same identities on every run, also on another replica and after a failure.
func TestPublishIdentitiesAreTheSameOnEveryRun(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var runs [2][]string
		for run := range runs {
			var failed atomic.Bool
			e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, _ *message.Message) (any, error) {
				own := newMessage("", "own")
				delete(own.Metadata, envelope.KeyHeader)
				own.UUID = "" // the author leaves both to the engine
				keyed := newMessage("chosen", "keyed")
				if err := tx.Publish(ctx, "first", map[string]int{"n": 1}, own, keyed); err != nil {
					return nil, err
				}
				if failed.CompareAndSwap(false, true) {
					return nil, errBroken
				}
				return nil, tx.Publish(ctx, "second", "text")
			}})
			e.acked(t, newMessage("parent", "1"))
			rows := h.outgoing(t)
			require.Len(t, rows, 4, "the failed attempt published nothing")
			for i, row := range rows {
				if i != 2 { // there the author gave both
					require.Equal(t, envelope.DeriveUUID(scope, "parent", i), row.UUID)
					require.Equal(t, row.UUID, row.Key)
					runs[run] = append(runs[run], row.UUID)
				}
				require.Equal(t, "parent", row.Parent)
			}
			require.Equal(t, "chosen", rows[2].Key)
			require.Equal(t, "second", rows[3].Topic)
			require.JSONEq(t, `{"n":1}`, string(rows[0].Payload))
			// The whole database is forgotten, as by a restored backup, and the message comes again.
			for _, table := range []string{"processed_events", "outbox", "attempts"} {
				_, err := h.DB().ExecContext(t.Context(), "DELETE FROM "+table)
				require.NoError(t, err)
			}
		}
		require.Equal(t, runs[0], runs[1])
	})
}

// A key can be followed through hops: each handler's messages derive from the key it got, and copies of them are duplicates at the next.
func TestPublishThroughHops(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		hop := func(next string) idempotency.Handler {
			return func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				if next == "" {
					return effect(ctx, tx, msg)
				}
				return nil, tx.Publish(ctx, next, string(msg.Payload))
			}
		}
		first := h.newEngine(t, idempotency.Binding{Scope: "svc/a", Handler: hop("b")})
		second := h.newEngine(t, idempotency.Binding{Scope: "svc/b", Handler: hop("c")})
		third := h.newEngine(t, idempotency.Binding{Scope: "svc/c", Handler: hop("")})
		first.acked(t, newMessage("start", "1", envelope.OrderingKeyHeader, "account-7"))
		toB := h.outgoing(t)[0]
		second.acked(t, toB.message(t), toB.message(t))
		toC := h.outgoing(t)[1]
		third.acked(t, toC.message(t), toC.message(t), toC.message(t))
		require.Equal(t, envelope.DeriveUUID("svc/b", envelope.DeriveUUID("svc/a", "start", 0), 0), toC.Key)
		require.Equal(t, "account-7", toC.Ordering, "the ordering key is taken over")
		require.Equal(t, 1, h.effectsOf(t, toC.Key))
		require.Len(t, h.outgoing(t), 2)
	})
}

func TestPublishTakesTheOrderingKeyOver(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, _ *message.Message) (any, error) {
			return nil, tx.Publish(ctx, "out", "plain", newMessage("k", "own", envelope.OrderingKeyHeader, "mine"))
		}}, func(c *idempotency.Config) {
			c.Inject = func(_ context.Context, metadata message.Metadata) { metadata.Set("traceparent", "00-trace") }
		})
		e.acked(t, newMessage("key", "1", envelope.OrderingKeyHeader, "parents"))
		rows := h.outgoing(t)
		require.Equal(t, "parents", rows[0].Ordering)
		require.Equal(t, "mine", rows[1].Ordering)
		require.Equal(t, "00-trace", rows[0].message(t).Metadata.Get("traceparent"))
	})
}

// What breaks the message contract is refused at once, and the message with it.
func TestPublishRefusesBadMessages(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		bad := map[string]func(ctx context.Context, tx *idempotency.Tx) error{
			envelope.RuleTopicInvalid: func(ctx context.Context, tx *idempotency.Tx) error { return tx.Publish(ctx, "no/slash", "x") },
			envelope.RuleMetadataReserved: func(ctx context.Context, tx *idempotency.Tx) error {
				return tx.Publish(ctx, "out", newMessage("k", "x", "oncemill-x", "1"))
			},
			envelope.RuleKeyControl: func(ctx context.Context, tx *idempotency.Tx) error {
				return tx.Publish(ctx, "out", newMessage("a\nb", "x"))
			},
			envelope.RulePayloadTooLarge: func(ctx context.Context, tx *idempotency.Tx) error {
				return tx.Publish(ctx, "out", string(make([]byte, 2000)))
			},
		}
		for reason, publish := range bad {
			e := h.newEngine(t, idempotency.Binding{Scope: "svc/" + reason, MaxPayload: 1000, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				if _, err := effect(ctx, tx, msg); err != nil {
					return nil, err
				}
				return nil, publish(ctx, tx)
			}})
			e.acked(t, newMessage("key", "1"))
			require.Equal(t, 1, e.events(idempotency.EventKind("dead_letter:"+reason)), reason)
		}
		require.Zero(t, h.effects(t))
		require.Empty(t, h.outgoing(t))
	})
}

// The façade is what sqlx and sqlc ask for, and its statements are one transaction.
func TestTxRunsStatements(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			if _, err := sqlx.NamedExecContext(ctx, tx, `INSERT INTO effects (k, v) VALUES (:k, :v)`, map[string]any{"k": tx.Key(), "v": "named"}); err != nil {
				return nil, err
			}
			stmt, err := tx.PrepareContext(ctx, tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`))
			if err != nil {
				return nil, err
			}
			defer func() { _ = stmt.Close() }()
			if _, err := stmt.ExecContext(ctx, tx.Key(), "prepared"); err != nil {
				return nil, err
			}
			var all []string
			if err := sqlx.SelectContext(ctx, tx, &all, tx.Rebind(`SELECT v FROM effects WHERE k = ? ORDER BY v`), tx.Key()); err != nil {
				return nil, err
			}
			var one string
			if err := tx.QueryRowContext(ctx, tx.Rebind(`SELECT v FROM effects WHERE v = ?`), "named").Scan(&one); err != nil {
				return nil, err
			}
			rows, err := tx.QueryContext(ctx, `SELECT v FROM effects ORDER BY v`)
			if err != nil {
				return nil, err
			}
			defer func() { _ = rows.Close() }()
			n := 0
			for rows.Next() {
				n++
			}
			return map[string]any{"all": all, "one": one, "n": n, "scope": tx.Scope()}, rows.Err()
		}})
		e.acked(t, newMessage("key", "1"))
		require.JSONEq(t, `{"all":["named","prepared"],"one":"named","n":2,"scope":"svc/pay"}`, string(h.key(t, scope, "key").Result))
	})
}

// A constraint that the handler expects and handles is its own affair, as far as the database lets it go on.
func TestTxHandlerHandlesItsConstraint(t *testing.T) {
	t.Parallel()
	h := onSQLite(t)
	_, err := h.DB().ExecContext(t.Context(), `CREATE UNIQUE INDEX one ON effects (v)`)
	require.NoError(t, err)
	e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		if _, err := effect(ctx, tx, msg); err != nil {
			return "there already", nil
		}
		return "new", nil
	}})
	e.acked(t, newMessage("one", "same"), newMessage("two", "same"))
	require.JSONEq(t, `"there already"`, string(h.key(t, scope, "two").Result))
}

// Deferred statements run in order, before the next statement and before the commit, and their checks see the affected rows.
func TestDefer(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: func(ctx context.Context, tx *idempotency.Tx, _ *message.Message) (any, error) {
			insert := tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`)
			var order []string
			tx.Defer(func(rows int64) error { order = append(order, fmt.Sprint("first ", rows)); return nil }, insert, tx.Key(), "1")
			tx.Defer(nil, insert, tx.Key(), "2")
			tx.Defer(func(rows int64) error { order = append(order, fmt.Sprint("second ", rows)); return nil }, `UPDATE effects SET v = 'x'`)
			var n int
			if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n); err != nil {
				return nil, err
			}
			tx.Defer(nil, insert, tx.Key(), "3")
			return append(order, fmt.Sprint("seen ", n)), nil
		}})
		e.acked(t, newMessage("key", "1"))
		require.JSONEq(t, `["first 1","second 2","seen 2"]`, string(h.key(t, scope, "key").Result))
		require.Equal(t, 3, h.effects(t))
	})
}

// A deferred statement that fails, or whose check does, fails the message, also when the handler overlooks it.
func TestDeferFailureCannotBeOverlooked(t *testing.T) {
	breaks := map[string]func(tx *idempotency.Tx){
		"check": func(tx *idempotency.Tx) {
			tx.Defer(func(int64) error { return refusal{"balance"} }, `UPDATE effects SET v = 'x'`)
		},
		"statement": func(tx *idempotency.Tx) { tx.Defer(nil, `INSERT INTO effects (k, v) VALUES (NULL, NULL)`) },
	}
	uses := map[string]func(ctx context.Context, tx *idempotency.Tx){
		"at the end": func(context.Context, *idempotency.Tx) {},
		"by exec":    func(ctx context.Context, tx *idempotency.Tx) { _, _ = tx.ExecContext(ctx, `UPDATE effects SET v = v`) },
		"by row": func(ctx context.Context, tx *idempotency.Tx) {
			var n int
			_ = tx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n)
		},
	}
	eachStore(t, func(t *testing.T, h *harness) {
		for what, brk := range breaks {
			for how, use := range uses {
				var calls atomic.Int64
				e := h.newEngine(t, idempotency.Binding{Scope: "svc/" + what + how, Retry: idempotency.Retry{Attempts: 1}, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
					if _, err := effect(ctx, tx, msg); err != nil {
						return nil, err
					}
					calls.Add(1)
					brk(tx)
					tx.Defer(nil, tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`), "never", "run")
					use(ctx, tx)
					return "all is well", nil
				}})
				e.acked(t, newMessage("key", "1"))
				require.Equal(t, keystore.Failed, h.key(t, e.scope, "key").State, "%s %s", what, how)
				require.Zero(t, h.effects(t))
				if what == "check" {
					require.Equal(t, 1, e.events("dead_letter:balance"))
				}
			}
		}
	})
}

// Hooks run after the commit and only then; what they do wrong is no failure of the message any more.
func TestAfterCommit(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var ran, calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Timeout: 500 * time.Millisecond, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			tx.AfterCommit(func(context.Context) { panic("a hook may be broken") })
			tx.AfterCommit(func(ctx context.Context) { <-ctx.Done() })
			tx.AfterCommit(func(context.Context) { ran.Add(int64(h.effects(t))) })
			if _, err := effect(ctx, tx, msg); err != nil {
				return nil, err
			}
			if calls.Add(1) == 1 {
				return nil, errors.New("the first attempt fails")
			}
			return nil, nil
		}})
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 1, ran.Load(), "once, and it saw the committed row on another connection")
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 1, ran.Load())
		require.EqualValues(t, 2, calls.Load())
		require.Empty(t, h.rows(t))
	})
}
