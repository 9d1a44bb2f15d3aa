package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// One call, one record, and its result is kept; a duplicate calls nobody.
func TestExternalCallsAndRecords(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		ext := external(outside.call)
		ext.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, result json.RawMessage) error {
			if err := tx.Publish(ctx, "sent", json.RawMessage(result)); err != nil {
				return err
			}
			_, err := effect(ctx, tx, msg)
			return err
		}
		e := h.newEngine(t, idempotency.Binding{External: ext})
		e.acked(t, newMessage("key", "1"), newMessage("key", "1"), redelivered(newMessage("key", "1")))
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.JSONEq(t, `{"receipt":"key"}`, string(h.key(t, scope, "key").Result))
		rows := h.outgoing(t)
		require.Len(t, rows, 1)
		require.Equal(t, envelope.DeriveUUID(scope, "key", 0), rows[0].UUID)
		require.Equal(t, 2, e.events(idempotency.EventDuplicate))

		e.acked(t, newMessage("key", "other"))
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
		require.Equal(t, 1, outside.of("key"))
	})
}

// A failure where surely nothing happened gives the key back at once; a refusal is remembered.
func TestExternalFailures(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Lease: time.Hour, External: external(func(_ context.Context, msg *message.Message, _, _ string) (any, error) {
			if string(msg.Payload) == "refused" {
				return nil, refusal{"address"}
			}
			if calls.Add(1) <= 2 {
				return nil, errBroken
			}
			return "done", nil
		})})
		e.acked(t, newMessage("transient", "1"), newMessage("refused", "refused"), newMessage("refused", "refused"))
		require.EqualValues(t, 3, calls.Load())
		require.Equal(t, []string{"1"}, h.values(t))
		require.Equal(t, "address", h.dead(t).Reason)
		require.Equal(t, keystore.Failed, h.key(t, scope, "refused").State)
		require.Equal(t, 1, e.events(idempotency.EventRejected))
	})
}

func TestExternalAttemptsExhausted(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{
			Retry:    idempotency.Retry{Attempts: 3},
			External: external(func(context.Context, *message.Message, string, string) (any, error) { return nil, errBroken }),
		})
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, "attempts-exhausted", h.dead(t).Reason)
		require.Equal(t, keystore.Failed, h.key(t, scope, "key").State)
	})
}

// The dead letter of a copy waits while another copy of the key is under way: that one may succeed.
func TestExternalExhaustedBesideARunningCopy(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		calling, burying := newBreakpoint(t, "call"), newBreakpoint(t, faultpoint.BeforeDeadLetter)
		b := idempotency.Binding{Retry: idempotency.Retry{Attempts: 1}}
		b.External = external(func(context.Context, *message.Message, string, string) (any, error) { return nil, errBroken })
		exhausted := h.newEngine(t, b, withFault(burying.fault))
		b.External = external(func(context.Context, *message.Message, string, string) (any, error) {
			calling.hit()
			return "done", nil
		})
		running := h.newEngine(t, b)
		one := exhausted.deliver(newMessage("key", "1"))
		burying.await(t)
		two := running.deliver(newMessage("key", "1"))
		calling.await(t)
		burying.release()
		require.NoError(t, one()[0])
		require.Len(t, h.rows(t), 1)
		require.Equal(t, parking.Waiting, h.rows(t)[0].State)
		calling.release()
		require.NoError(t, two()[0])
		h.feedNow(t, exhausted)
		require.Empty(t, h.rows(t))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
	})
}

// An external handler needs a key, whatever the policy for a missing one is.
func TestExternalNeedsAKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		e := h.newEngine(t, idempotency.Binding{Missing: envelope.MissingPass, External: external(outside.call)})
		e.acked(t, newMessage("", "1"))
		require.Equal(t, envelope.RuleKeyMissing, h.dead(t).Reason)
		require.Zero(t, outside.of(""))
	})
}

// The answer of the store that gave the lease is lost: the next try knows that the lease is its own.
func TestExternalLeaseAnswerLost(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		e := h.newEngine(t, idempotency.Binding{Lease: time.Hour, External: external(outside.call)},
			withFault(failAt(faultpoint.LeaseAcquired, 2, keystore.ErrOutcomeUnknown)))
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Zero(t, e.events(idempotency.EventTakeover))
		require.Empty(t, h.rows(t))
	})
}

// Record fails: for a while, and the result is held until it works, without a second call; for good, and the message is in doubt with
// its result.
func TestExternalRecordFails(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		var records atomic.Int64
		ext := external(outside.call)
		ext.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, _ json.RawMessage) error {
			if _, err := effect(ctx, tx, msg); err != nil {
				return err
			}
			if string(msg.Payload) == "for good" {
				return refusal{"constraint"}
			}
			if string(msg.Payload) == "panics" {
				panic("in record")
			}
			if records.Add(1) <= 2 {
				return errBroken
			}
			return nil
		}
		e := h.newEngine(t, idempotency.Binding{External: ext, Retry: idempotency.Retry{InProcess: 2 * time.Second}})
		e.acked(t, newMessage("transient", "for a while"))
		require.Equal(t, 1, outside.of("transient"))
		require.Equal(t, 1, h.effects(t))

		for _, payload := range []string{"for good", "panics"} {
			e.acked(t, newMessage(payload, payload), newMessage(payload, payload))
			require.Equal(t, 1, outside.of(payload))
			record := h.key(t, scope, payload)
			require.Equal(t, keystore.InDoubt, record.State)
			require.JSONEq(t, `{"receipt":"`+payload+`"}`, string(record.Result), "the outcome is known and kept")
		}
		require.Len(t, h.rows(t, parking.InDoubt), 2)
		require.Equal(t, "record-failed", h.rows(t)[0].Reason)
		require.Equal(t, 2, e.events("in_doubt:record-failed"))
		require.Equal(t, 2, e.events(idempotency.EventWaiting))
		require.Equal(t, 1, h.effects(t))
	})
}

// Record fails for longer than the retries last in the process: where the provider deduplicates, nobody is asked; the message waits, and
// the call is made again under its identity.
func TestExternalRecordFailsForLong(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		var broken atomic.Bool
		broken.Store(true)
		ext := external(outside.call)
		ext.Unknown = idempotency.UnknownRetry
		ext.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, _ json.RawMessage) error {
			if broken.Load() {
				return errBroken
			}
			_, err := effect(ctx, tx, msg)
			return err
		}
		e := h.newEngine(t, idempotency.Binding{External: ext, Retry: idempotency.Retry{InProcess: -1, First: time.Millisecond}})
		e.acked(t, newMessage("key", "1"))
		require.Len(t, h.rows(t, parking.Waiting), 1)
		require.Zero(t, h.effects(t))
		broken.Store(false)
		eventually(t, "the message is due", func() bool { return h.runDue(t, e) == 1 })
		require.Equal(t, 2, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Empty(t, h.rows(t))
	})
}

// The answer of the completing commit is lost: the call is not made again and its rows are there once.
func TestExternalCommitAnswerLost(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		e := h.newEngine(t, idempotency.Binding{External: external(outside.call)}, withFault(failAt(faultpoint.Committed, 1, errBroken)))
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Empty(t, h.rows(t))
	})
}

// A result that cannot be kept does not undo the call: a person decides.
func TestExternalResultTooLarge(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{External: external(func(context.Context, *message.Message, string, string) (any, error) {
			return make([]int, keystore.MaxResult), nil
		})})
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "key").State)
		require.Equal(t, "record-failed", h.rows(t, parking.InDoubt)[0].Reason)
	})
}

// The store goes away while the result is to be recorded: the result is held until it is back.
func TestExternalRecordWaitsForTheStore(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		storm := newStorm(h, "commit")
		e := h.newEngine(t, idempotency.Binding{External: external(outside.call)}, storm.option)
		wait := e.deliver(newMessage("key", "1"))
		eventually(t, "commits fail", func() bool { return storm.hits.Load() >= 3 })
		storm.calm()
		require.NoError(t, wait()[0])
		require.Equal(t, 1, outside.of("key"))
		require.Equal(t, 1, h.effects(t))
	})
}

// A stop while the call runs lets it finish; when the grace is over the outcome is not known, and the key says so.
func TestExternalStop(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		hold := newBreakpoint(t, "call")
		patient := h.newEngine(t, idempotency.Binding{External: external(func(context.Context, *message.Message, string, string) (any, error) {
			hold.hit()
			return "done", nil
		})})
		wait := patient.deliver(newMessage("finishes", "1"))
		hold.await(t)
		patient.Stop()
		hold.release()
		require.NoError(t, wait()[0])
		require.Equal(t, keystore.Completed, h.key(t, scope, "finishes").State)

		calling := make(chan struct{})
		cut := h.newEngine(t, idempotency.Binding{External: external(func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			close(calling)
			<-ctx.Done()
			return nil, errors.New("cut off in the middle")
		})})
		wait = cut.deliver(newMessage("cut", "1"))
		await(t, calling, "the call is made")
		over, cancel := context.WithCancel(t.Context())
		cancel()
		cut.Stop()
		require.ErrorIs(t, cut.Wait(over), context.Canceled)
		_ = wait()
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "cut").State)
		require.Len(t, h.rows(t, parking.InDoubt), 1)
	})
}
