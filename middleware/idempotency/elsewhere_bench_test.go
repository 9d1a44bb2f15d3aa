package idempotency_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// BenchmarkDuplicates compares duplicates that cost a transaction of PostgreSQL with those that Redis knows.
func BenchmarkDuplicates(b *testing.B) {
	quiet := store.Options{Logger: slog.New(slog.DiscardHandler)}
	db := testenv.Postgres(b)
	s, err := pgstore.Open(b.Context(), pgstore.Config{DSN: db.DSN, Schema: db.Schema}, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Migrate(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	if _, err := s.DB().ExecContext(b.Context(), `CREATE TABLE effects (k text NOT NULL, v text NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	far, err := redisstore.Open(b.Context(), redisstore.Config{URL: testenv.Redis(b), Prefix: testenv.Name(b, "bench") + ":"}, quiet)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = far.Close() }()
	const keys = 500
	for _, hints := range []bool{false, true} {
		b.Run(fmt.Sprintf("hints=%t", hints), func(b *testing.B) {
			cfg := idempotency.Config{Binding: idempotency.Binding{Scope: fmt.Sprint("bench/", hints), Handler: effect}, Keys: s.Keys(), Parking: s.Parking()}
			if hints {
				cfg.Elsewhere = far
			}
			e, err := idempotency.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			for i := range keys {
				if err := e.Process(newMessage(fmt.Sprint(i), "1")); err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					if err := e.Process(newMessage(fmt.Sprint(i%keys), "1")); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "duplicates/s")
			e.Stop()
			if err := e.Wait(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
