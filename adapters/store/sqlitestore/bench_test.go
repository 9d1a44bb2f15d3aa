package sqlitestore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// BenchmarkMessage is one transaction: a group of claims, two business statements for each, its outbox rows, and the flushed commit.
func BenchmarkMessage(b *testing.B) {
	for _, group := range []int{1, 20, 100} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			s, err := sqlitestore.Open(b.Context(), sqlitestore.Config{Path: b.TempDir() + "/bench.db"}, store.Options{})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, s.Close()) })
			require.NoError(b, s.Migrate(b.Context(), nil))
			_, err = s.DB().Exec(`CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER); CREATE TABLE payments (id TEXT PRIMARY KEY, amount INTEGER);
				WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) INSERT INTO accounts SELECT i, 0 FROM n`)
			require.NoError(b, err)
			n := 0
			b.ResetTimer()
			began := time.Now()
			for b.Loop() {
				require.NoError(b, benchGroup(b.Context(), s.Keys(), n, group))
				n += group
			}
			b.ReportMetric(float64(n)/time.Since(began).Seconds(), "messages/s")
		})
	}
}

func benchGroup(ctx context.Context, keys keystore.Store, n, group int) error {
	tx, err := keys.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	claims := make([]keystore.Claim, group)
	for i := range claims {
		claims[i] = keystore.Claim{ID: keystore.ID{Scope: "bench", Key: envelope.NewUUID()}, Fingerprint: "payload:1:" + envelope.NewUUID(), Retention: time.Hour}
	}
	if _, err := tx.Claim(ctx, claims); err != nil {
		return err
	}
	completions := make([]keystore.Completion, group)
	for i, c := range claims {
		if _, err := tx.SQL().ExecContext(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = ?`, (n+i)%10000); err != nil {
			return err
		}
		if _, err := tx.SQL().ExecContext(ctx, `INSERT INTO payments VALUES (?, 1)`, c.Key); err != nil {
			return err
		}
		completions[i] = keystore.Completion{Claim: c, State: keystore.Completed, Retention: time.Hour, Result: []byte(`{"ok":true}`), Outbox: []outbox.Record{
			{Topic: "payments.completed", UUID: envelope.NewUUID(), Key: c.Key, Payload: make([]byte, 250), Scope: c.Scope, ParentKey: c.Key},
		}}
	}
	return tx.Commit(ctx, completions)
}
