package idempotency_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

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
	var gate idempotency.Gate
	leave, err := gate.Enter(t.Context(), false)
	require.NoError(t, err)
	ctx, giveUp := context.WithCancelCause(t.Context())
	refused := make(chan error, 1)
	go func() {
		_, err := gate.Enter(ctx, true)
		refused <- err
	}()
	// Until the suspect waits, others are let in; then none is.
	eventually(t, "the gate is shut", func() bool {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		again, err := gate.Enter(over, false)
		if err == nil {
			again()
		}
		return err != nil
	})
	entered := make(chan struct{})
	go func() {
		defer close(entered)
		if again, err := gate.Enter(context.Background(), false); err == nil {
			again()
		}
	}()
	giveUp(errBroken)
	require.ErrorIs(t, <-refused, errBroken)
	await(t, entered, "the gate is open again")
	leave()
}
