package idempotency_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

// Nobody is inside with a suspect, nobody waits for ever, and who gives up leaves no trace: many come and go at random.
func TestGateUnderLoad(t *testing.T) {
	t.Parallel()
	var gate idempotency.Gate
	var inside, suspects atomic.Int64
	var visitors sync.WaitGroup
	for range 8 {
		visitors.Go(func() {
			for range 500 {
				suspect := rand.N(10) == 0
				ctx, cancel := context.WithCancel(context.Background())
				if rand.N(5) == 0 {
					go cancel()
				}
				leave, err := gate.Enter(ctx, suspect)
				if err == nil {
					n := inside.Add(1)
					if suspect {
						suspects.Add(1)
					}
					if suspects.Load() > 0 && n != 1 {
						t.Errorf("%d are inside with a suspect", n)
					}
					if suspect {
						suspects.Add(-1)
					}
					inside.Add(-1)
					leave()
					leave() // twice is once
				} else if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	visitors.Wait()
	leave, err := gate.Enter(t.Context(), true)
	require.NoError(t, err, "the gate is empty")
	leave()
}

// A suspect that waits shuts the gate for those who come later, and opens it when it gives up.
func TestGateSuspectGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var gate idempotency.Gate
		leave, err := gate.Enter(t.Context(), false)
		require.NoError(t, err)
		ctx, giveUp := context.WithCancelCause(t.Context())
		enter := func(ctx context.Context, suspect bool) <-chan error {
			entered := make(chan error, 1)
			go func() {
				leave, err := gate.Enter(ctx, suspect)
				if err == nil {
					leave()
				}
				entered <- err
			}()
			synctest.Wait() // it is inside, or waits
			return entered
		}
		suspect := enter(ctx, true)
		later := enter(t.Context(), false)
		require.Empty(t, suspect, "somebody is inside")
		require.Empty(t, later, "a suspect waits")
		giveUp(errBroken)
		require.ErrorIs(t, <-suspect, errBroken)
		require.NoError(t, <-later)
		// The last one to leave lets a suspect in.
		suspect = enter(t.Context(), true)
		require.Empty(t, suspect)
		leave()
		require.NoError(t, <-suspect)
	})
}
