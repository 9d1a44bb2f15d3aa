package idempotency_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// listening notes the claims of transactions, and the completions that they end with.
type listening struct {
	keystore.Store
	mu     sync.Mutex
	claims []keystore.Claim
	ends   []keystore.Completion
}

func (l *listening) Begin(ctx context.Context, opts keystore.TxOptions) (keystore.Tx, error) {
	tx, err := l.Store.Begin(ctx, opts)
	return listeningTx{tx, l}, err
}

type listeningTx struct {
	keystore.Tx
	l *listening
}

func (t listeningTx) Claim(ctx context.Context, claims []keystore.Claim) ([]keystore.Verdict, error) {
	t.l.mu.Lock()
	t.l.claims = append(t.l.claims, claims...)
	t.l.mu.Unlock()
	return t.Tx.Claim(ctx, claims)
}

func (t listeningTx) Commit(ctx context.Context, ends []keystore.Completion) error {
	t.l.mu.Lock()
	t.l.ends = append(t.l.ends, ends...)
	t.l.mu.Unlock()
	return t.Tx.Commit(ctx, ends)
}

// A claim tells the store what its completion will be, so that the key need not be written a second time.
func TestClaimsTellTheirCompletion(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		l := &listening{Store: h.Keys()}
		e := h.newEngine(t, idempotency.Binding{Retention: 3 * time.Hour, Handler: effect}, func(c *idempotency.Config) { c.Keys = l })
		e.acked(t, newMessage("key", "value"))
		require.Equal(t, 1, h.effects(t))
		require.Len(t, l.claims, 1)
		require.Equal(t, 3*time.Hour, l.claims[0].Retention)
		require.Equal(t, l.ends[0].Owner, l.claims[0].Owner)
		require.NotEmpty(t, l.claims[0].Owner)
		require.Equal(t, l.ends[0].Owner, h.key(t, scope, "key").Owner)
	})
}
