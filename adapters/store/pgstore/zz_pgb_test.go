package pgstore_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

func TestZZPgb(t *testing.T) {
	for _, dsn := range []string{
		"postgres://oncemill@127.0.0.1:16432/pgb_check?sslmode=disable&default_query_exec_mode=exec",
		"postgres://oncemill@127.0.0.1:16432/pgb_check?sslmode=disable&default_query_exec_mode=simple_protocol",
		"postgres://oncemill@127.0.0.1:16432/pgb_check?sslmode=disable&default_query_exec_mode=cache_describe",
		"postgres://oncemill@127.0.0.1:16432/pgb_check?sslmode=disable&default_query_exec_mode=describe_exec",
		"postgres://oncemill@127.0.0.1:16432/pgb_check?sslmode=disable",
	} {
		t.Run(dsn, func(t *testing.T) {
			c := pgstore.Config{DSN: dsn}
			var wg sync.WaitGroup
			errs := make([]error, 6)
			for i := range errs {
				wg.Go(func() { errs[i] = migrateOnce(t.Context(), c) })
			}
			wg.Wait()
			for _, err := range errs {
				require.NoError(t, err)
			}
			s, err := pgstore.Open(t.Context(), c, store.Options{})
			require.NoError(t, err)
			defer s.Close()
			s.Outbox().Wake()
			run(t, s, `TRUNCATE processed_events, outbox`)
			var mu sync.Mutex
			got := map[keystore.Outcome]int{}
			for w := range 10 {
				wg.Go(func() {
					for i := range 50 {
						tx, err := s.Keys().Begin(t.Context(), keystore.TxOptions{})
						if err != nil {
							t.Error(err)
							return
						}
						key := fmt.Sprint(i)
						v, err := tx.Claim(t.Context(), []keystore.Claim{claimOf(key)})
						if err != nil {
							t.Error(w, err)
							_ = tx.Rollback()
							return
						}
						done := completed(key)
						done[0].Result = []byte(`{"a": 1}`)
						done[0].Outbox = []outbox.Record{{Topic: "t", UUID: key, Key: key}}
						if v[0].Outcome == keystore.Fresh {
							err = tx.Commit(t.Context(), done)
						} else {
							err = tx.Rollback()
						}
						if err != nil {
							t.Error(w, err)
							return
						}
						mu.Lock()
						got[v[0].Outcome]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			require.Equal(t, map[keystore.Outcome]int{keystore.Fresh: 50, keystore.Duplicate: 450}, got)
			lanes, err := s.Outbox().AcquireLanes(t.Context(), "me", 1e9)
			require.NoError(t, err)
			n := 0
			for _, l := range lanes {
				r, err := s.Outbox().Fetch(t.Context(), l, 100)
				require.NoError(t, err)
				for _, x := range r {
					require.NoError(t, s.Outbox().Done(t.Context(), l, []int64{x.ID}))
				}
				n += len(r)
			}
			require.Equal(t, 50, n)
			require.NoError(t, s.Outbox().ReleaseLanes(t.Context(), "me"))
		})
	}
}
