package idempotency_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// A message passes so many steps, and each asks whether there is a hook, which allocates nothing where there is none.
func TestHookOff(t *testing.T) {
	var steps atomic.Int64
	h := onSQLite(t)
	e := h.newEngine(t, idempotency.Binding{Handler: effect}, withFault(func(context.Context, faultpoint.Point) error {
		steps.Add(1)
		return nil
	}))
	require.NoError(t, e.Process(newMessage("k", "1")))
	require.EqualValues(t, stepsOfEffect, steps.Load())
	require.Zero(t, testing.AllocsPerRun(1000, func() { passSteps(t.Context(), nil) }))
}

// stepsOfEffect are those of a message whose handler has one statement.
const stepsOfEffect = 8

func passSteps(ctx context.Context, hook faultpoint.Hook) {
	for range stepsOfEffect {
		if err := hook.At(ctx, faultpoint.BeforeStatement); err != nil {
			panic(err)
		}
	}
}

// BenchmarkHookOff is what the steps of one message cost without a hook, beside the whole message.
func BenchmarkHookOff(b *testing.B) {
	b.Run("steps", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			passSteps(b.Context(), nil)
		}
	})
	b.Run("message", func(b *testing.B) {
		s, err := sqlitestore.Open(b.Context(), sqlitestore.Config{Path: filepath.Join(b.TempDir(), "bench.db")},
			store.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(b, err)
		defer func() { _ = s.Close() }()
		require.NoError(b, s.Migrate(b.Context(), nil))
		_, err = s.DB().ExecContext(b.Context(), `CREATE TABLE effects (k text NOT NULL, v text NOT NULL)`)
		require.NoError(b, err)
		e, err := idempotency.New(idempotency.Config{Binding: idempotency.Binding{Scope: scope, Handler: effect}, Keys: s.Keys(), Parking: s.Parking()})
		require.NoError(b, err)
		defer e.Stop()
		for b.Loop() {
			require.NoError(b, e.Process(newMessage(envelope.NewUUID(), "1")))
		}
	})
}
