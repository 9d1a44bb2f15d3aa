package pgstore_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// BenchmarkMessage is one transaction: a group of claims, two business statements for each, its outbox rows, and the commit. "expecting" claims say what the
// completion will be; "plain" is a pool of the caller's.
func BenchmarkMessage(b *testing.B) {
	for _, group := range []int{1, 20} {
		for _, how := range []string{"pipelined", "expecting", "plain"} {
			b.Run(fmt.Sprintf("%s/group=%d", how, group), func(b *testing.B) { benchmarkGroups(b, how, group) })
		}
	}
}

func benchmarkGroups(b *testing.B, how string, group int) {
	s := benchStore(b, how)
	_, err := s.DB().Exec(`CREATE TABLE accounts (id int PRIMARY KEY, balance bigint); CREATE TABLE payments (id text PRIMARY KEY, amount bigint);
		INSERT INTO accounts SELECT g, 0 FROM generate_series(0, 9999) g`)
	require.NoError(b, err)
	var n atomic.Int64
	expect := time.Duration(0)
	if how == "expecting" {
		expect = time.Hour
	}
	b.SetParallelism(8)
	b.ResetTimer()
	began := time.Now()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := benchGroup(b.Context(), s.Keys(), n.Add(int64(group)), group, expect); err != nil && s.Keys().Classify(err) != keystore.FaultContention {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(n.Load())/time.Since(began).Seconds(), "messages/s")
}

func benchStore(b *testing.B, how string) *pgstore.Store {
	db := testenv.Postgres(b)
	s, err := pgstore.Open(b.Context(), pgstore.Config{DSN: db.DSN, Schema: db.Schema}, store.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	require.NoError(b, s.Migrate(b.Context(), nil))
	if how != "plain" {
		return s
	}
	pool, err := sqlx.Open("pgx", db.DSN)
	require.NoError(b, err)
	pool.SetMaxIdleConns(16)
	b.Cleanup(func() { require.NoError(b, pool.Close()) })
	plain := pgstore.New(pool, pgstore.Config{})
	b.Cleanup(func() { require.NoError(b, plain.Close()) })
	return plain
}

func benchGroup(ctx context.Context, keys keystore.Store, n int64, group int, expect time.Duration) error {
	tx, err := keys.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	claims := make([]keystore.Claim, group)
	for i := range claims {
		claims[i] = keystore.Claim{ID: keystore.ID{Scope: "bench", Key: envelope.NewUUID()}, Fingerprint: "payload:1:" + envelope.NewUUID(), Retention: expect}
	}
	if _, err := tx.Claim(ctx, claims); err != nil {
		return err
	}
	completions := make([]keystore.Completion, group)
	for i, c := range claims {
		if _, err := tx.SQL().ExecContext(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = $1`, (n+int64(i))%10000); err != nil {
			return err
		}
		if _, err := tx.SQL().ExecContext(ctx, `INSERT INTO payments VALUES ($1, 1)`, c.Key); err != nil {
			return err
		}
		completions[i] = keystore.Completion{Claim: c, State: keystore.Completed, Retention: time.Hour, Result: []byte(`{"ok":true}`), Outbox: []outbox.Record{
			{Topic: "payments.completed", UUID: envelope.NewUUID(), Key: c.Key, Payload: make([]byte, 250), Scope: c.Scope, ParentKey: c.Key},
		}}
	}
	return tx.Commit(ctx, completions)
}
