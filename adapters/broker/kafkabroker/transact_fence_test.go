//go:build !race

// In sarama v1.61.1 a fenced producer reads transactionManager.lastError without the lock under which another of its goroutines writes it,
// which the race detector reports. So this test runs without it.

package kafkabroker_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/transact"
)

// A paused owner that commits after another one took over is refused, and nothing of its transaction is seen.
func TestF005TransactionsFenceAZombie(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 1)
	p.send("k")
	type held struct {
		shard transact.Shard
		batch transact.Batch
	}
	zombie := make(chan held, 1)
	wake, outcome := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	old := p.start(func(ctx context.Context, shard transact.Shard) error {
		batch, taken, err := p.batchOf(shard)
		for err == nil && taken == 0 {
			batch, taken, err = p.batchOf(shard)
		}
		once.Do(func() {
			zombie <- held{shard, batch}
			<-wake // it minds neither its context nor Stopping
			outcome <- shard.Commit(context.Background(), batch)
		})
		return err
	})
	h := <-zombie
	require.Len(t, h.batch.Outputs, 1)
	next := p.start(p.copies)
	requireOnce(t, published(t, p.out, 1), []string{"k"})
	close(wake)
	require.ErrorIs(t, <-outcome, transact.ErrLost)
	requireOnce(t, published(t, p.out, 1), []string{"k"})
	p.send("k", "after")
	requireOnce(t, published(t, p.out, 2), []string{"k", "after"})
	p.drain(next)
	p.drain(old)
}
