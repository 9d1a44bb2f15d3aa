package sqlitestore

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTurns(t *testing.T, path string) *turnstile {
	t.Helper()
	turns, err := newTurnstile(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, turns.close()) })
	return turns
}

// queued waits until n visitors stand in the queue of this process.
func queued(t *testing.T, turns *turnstile, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return len(turns.urgent)+len(turns.regular) == n
	}, 10*time.Second, time.Millisecond)
}

func TestRenewalsGoFirst(t *testing.T) {
	t.Parallel()
	turns := newTurns(t, filepath.Join(t.TempDir(), "db"))
	leave, err := turns.enter(t.Context(), false, time.Minute)
	require.NoError(t, err)
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	for i, name := range []string{"first", "second", "urgent", "third"} {
		wg.Go(func() {
			leave, err := turns.enter(t.Context(), name == "urgent", time.Minute)
			if err != nil {
				return
			}
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			leave()
		})
		queued(t, turns, i+1)
	}
	leave()
	wg.Wait()
	require.Equal(t, []string{"urgent", "first", "second", "third"}, order)
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	holder, turns := newTurns(t, path), newTurns(t, path)
	leave, err := holder.enter(t.Context(), false, time.Minute)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := turns.enter(ctx, false, time.Minute); ended <- err }()
	queued(t, turns, 1)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err = turns.enter(t.Context(), false, 10*time.Millisecond)
	require.ErrorIs(t, err, errTurn)

	// The place in the queue of processes, which nobody needs any more, is given up when its turn comes.
	leave()
	again, err := holder.enter(t.Context(), false, 10*time.Second)
	require.NoError(t, err)
	again()
	leave, err = turns.enter(t.Context(), false, 10*time.Second)
	require.NoError(t, err)
	leave()
	leave() // twice is once
}

// TestNobodyStarves: three processes' worth of greedy writers; each gets about its third.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	const rounds = 300
	var mu sync.Mutex
	inside := 0
	var sequence []int
	var wg sync.WaitGroup
	for p := range 3 {
		turns := newTurns(t, path)
		for range 4 {
			wg.Go(func() {
				for {
					leave, err := turns.enter(t.Context(), false, time.Minute)
					if err != nil {
						return
					}
					mu.Lock()
					inside++
					alone, done := inside == 1, len(sequence) >= rounds
					sequence = append(sequence, p)
					mu.Unlock()
					time.Sleep(200 * time.Microsecond)
					mu.Lock()
					inside--
					mu.Unlock()
					leave()
					if done || !alone {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	require.GreaterOrEqual(t, len(sequence), rounds, "two were inside at once")
	longest := 0
	for p := range 3 {
		gap := 0
		for _, q := range sequence[:rounds] {
			if q == p {
				gap = 0
			} else {
				gap++
			}
			longest = max(longest, gap)
		}
	}
	t.Logf("longest sequence without one of the three: %d", longest)
	require.True(t, slices.Contains(sequence, 2))
	require.Less(t, longest, 30)
}

func TestCloseRefusesWhoWaits(t *testing.T) {
	t.Parallel()
	turns, err := newTurnstile(filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	leave, err := turns.enter(t.Context(), false, time.Minute)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := turns.enter(t.Context(), false, time.Minute); ended <- err }()
	queued(t, turns, 1)
	require.NoError(t, turns.close())
	require.ErrorIs(t, <-ended, errClosed)
	leave()
	_, err = turns.enter(t.Context(), false, time.Minute)
	require.ErrorIs(t, err, errClosed)
}
