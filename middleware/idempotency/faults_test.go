package idempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Each step breaks once. Whatever follows, a retry in the process or a redelivery, the effect happens once and nothing is left over.
func TestEachFaultPointOnce(t *testing.T) {
	transactional := []faultpoint.Point{
		faultpoint.Received, faultpoint.BeforeClaim, faultpoint.AfterClaim, faultpoint.BeforeStatement,
		faultpoint.AfterStatement, faultpoint.BeforeCommit, faultpoint.Committed, faultpoint.BeforeAck,
	}
	eachStore(t, func(t *testing.T, h *harness) {
		for _, point := range transactional {
			fault, broke := breakOnce(point)
			e := h.newEngine(t, idempotency.Binding{Handler: effect}, withFault(fault))
			h.untilAcked(t, e, newMessage(string(point), "1"))
			require.True(t, broke(), point)
			require.Equal(t, 1, h.effectsOf(t, string(point)), point)
			require.Equal(t, keystore.Completed, h.key(t, scope, string(point)).State, point)
		}
		// Of a parked message, which a feeder brings again.
		for _, point := range transactional {
			key := "parked-" + string(point)
			h.parked(t, key)
			fault, broke := breakOnce(point)
			e := h.newEngine(t, idempotency.Binding{Handler: effect}, withFault(fault))
			row := h.leased(t, scope, patience)
			if err := e.RunParked(t.Context(), row); err != nil {
				require.NoError(t, h.Parking().Release(t.Context(), row.Lease))
			}
			h.feedNow(t, e)
			require.True(t, broke(), point)
			require.Equal(t, 1, h.effectsOf(t, key), point)
		}
		for _, point := range []faultpoint.Point{
			faultpoint.LeaseAcquired, faultpoint.BeforeClaim, faultpoint.BeforeStatement, faultpoint.AfterStatement,
			faultpoint.BeforeCommit, faultpoint.Committed, faultpoint.BeforeAck,
		} {
			var outside provider
			key := "external-" + string(point)
			fault, broke := breakOnce(point)
			e := h.newEngine(t, idempotency.Binding{External: external(outside.call)}, withFault(fault))
			h.untilAcked(t, e, newMessage(key, "1"))
			require.True(t, broke(), point)
			require.Equal(t, 1, h.effectsOf(t, key), point)
			require.Equal(t, 1, outside.of(key), point)
		}
		require.Empty(t, h.rows(t))
	})
}

// breakOnce breaks a point once, and tells whether it came to that.
func breakOnce(point faultpoint.Point) (fault faultpoint.Hook, broke func() bool) {
	breaks, hit := failAt(point, 1, errBroken), atomic.Bool{}
	return func(ctx context.Context, at faultpoint.Point) error {
		err := breaks(ctx, at)
		if err != nil {
			hit.Store(true)
		}
		return err
	}, hit.Load
}

// untilAcked delivers as a broker does.
func (h *harness) untilAcked(t *testing.T, e *engine, msg *message.Message) {
	t.Helper()
	for range 3 {
		if e.Process(msg) == nil {
			return
		}
		msg = redelivered(msg)
	}
	require.FailNow(t, "the message is not acked")
}

// The steps of a failure break: parking and burial, before and after they are durable.
func TestEachFaultPointOfAFailureOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		for _, point := range []faultpoint.Point{
			faultpoint.BeforeParking, faultpoint.Parked, faultpoint.BeforeDeadLetter, faultpoint.DeadLetterWritten,
		} {
			for _, outcome := range []error{errBroken, refusal{"no"}} {
				key := string(point) + outcome.Error()
				var calls atomic.Int64
				fault, broke := breakOnce(point)
				e := h.newEngine(t, idempotency.Binding{
					Retry: idempotency.Retry{InProcess: -1},
					Handler: failing(func(*message.Message) error {
						calls.Add(1)
						return outcome
					})}, withFault(fault), quiet)
				h.untilAcked(t, e, newMessage(key, "1"))
				parks := point == faultpoint.BeforeParking || point == faultpoint.Parked
				require.Equal(t, parks == errors.Is(outcome, errBroken), broke(), key)
				require.EqualValues(t, 1, calls.Load(), key)
				rows, err := h.Parking().List(t.Context(), parking.Filter{Key: key})
				require.NoError(t, err)
				require.Len(t, rows, 1, key)
			}
		}
		require.Zero(t, h.effects(t))
	})
}

// An error of a statement that a test injects cannot be hidden from the classification either, as a driver's cannot.
func TestFaultOfAStatementDecides(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		storm := newStorm(h, "")
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Retry: idempotency.Retry{Attempts: 1}, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			calls.Add(1)
			_, _ = effect(ctx, tx, msg)
			return nil, nil
		}}, storm.option, withFault(failAt(faultpoint.AfterStatement, 1, errStorm)))
		e.acked(t, newMessage("key", "1"))
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 1, e.events(idempotency.EventUnavailable))
		require.Equal(t, 1, h.effects(t))
	})
}
