package idempotency_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
)

// A pool smaller than the concurrency never hangs: nobody waits for a second connection while it holds a transaction.
func TestF043PoolSmallerThanConcurrency(t *testing.T) {
	for _, connections := range []int{1, 2} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				small := on(h.open(t, connections))
				var retries atomic.Int64
				e := h.newEngine(t, idempotency.Binding{
					Concurrency: 16,
					Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
						var n int
						if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n); err != nil {
							return nil, err
						}
						if err := tx.Publish(ctx, "done", n); err != nil {
							return nil, err
						}
						if _, err := effect(ctx, tx, msg); err != nil {
							return nil, err
						}
						switch string(msg.Payload) {
						case "permanent":
							return nil, refusal{"no"}
						case "transient":
							if retries.Add(1) <= 10 {
								return nil, errBroken
							}
						}
						return n, nil
					}}, small)
				calls := h.newEngine(t, idempotency.Binding{Scope: "svc/call", Concurrency: 16, Lease: 300 * time.Millisecond, External: external(nothing)}, small)
				kinds := []string{"good", "transient", "permanent", "good"}
				var msgs, outside []*message.Message
				for i := range 100 {
					msg := newMessage(fmt.Sprintf("key-%d", i%50), kinds[i%50%4])
					if i%5 == 0 {
						msg = redelivered(msg) // suspects, too
					}
					msgs = append(msgs, msg)
					if i%4 == 0 {
						outside = append(outside, newMessage(fmt.Sprintf("call-%d", i), "1"))
					}
				}
				finished := make(chan []error, 1)
				go func() {
					wait, waitOutside := e.deliver(msgs...), calls.deliver(outside...)
					finished <- append(wait(), waitOutside()...)
				}()
				select {
				case errs := <-finished:
					for _, err := range errs {
						require.NoError(t, err)
					}
				case <-time.After(2 * patience):
					require.FailNow(t, "the pool hangs")
				}
				h.feedNow(t, e)
				h.feedNow(t, calls)
				require.Len(t, h.rows(t, parking.Dead), 12)
				require.Empty(t, h.rows(t, parking.Waiting, parking.InDoubt))
				require.Equal(t, 38+25, h.effects(t))
			})
		})
	}
}

// Messages that fail again and again, each waiting for its next attempt, take no slot from the good ones.
func TestF067FailingMessagesDoNotSlowGoodOnes(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const bad, good = 100, 50
		var failed atomic.Int64
		e := h.newEngine(t, idempotency.Binding{
			Concurrency: 2, Retry: idempotency.Retry{InProcess: 2 * time.Hour, Attempts: 1000},
			Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
				if string(msg.Payload) == "bad" {
					failed.Add(1)
					return nil, handlers.RetryAfter(time.Hour, errBroken)
				}
				return effect(ctx, tx, msg)
			}}, quiet)
		var msgs []*message.Message
		for i := range bad {
			msgs = append(msgs, newMessage(fmt.Sprintf("bad-%d", i), "bad"))
		}
		waitBad := e.deliver(msgs...)
		eventually(t, "all the bad ones wait for a retry", func() bool { return failed.Load() >= bad })
		for i := range good {
			e.acked(t, newMessage(fmt.Sprintf("good-%d", i), "good"))
		}
		e.Stop()
		for _, err := range waitBad() {
			require.Error(t, err)
		}
		require.Equal(t, good, h.effects(t))
		require.EqualValues(t, bad, failed.Load())
	})
}
