package handlertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// A cut breaks what one replica has open, and nothing else; a clock that is moved moves the keys'.
func TestServersAreCutAndMoved(t *testing.T) {
	for name, place := range map[string]func(t *testing.T) database{
		"postgres": func(t *testing.T) database { return newPostgres(t, testenv.PostgresServer(t)) },
		"mysql":    func(t *testing.T) database { return newMySQL(t, testenv.MySQL(t).DSN) },
	} {
		t.Run(name, func(t *testing.T) {
			k := &Kit{t: t, place: place(t)}
			k.open()
			begin := func(r *replica) keystore.Tx {
				tx, err := r.store.Keys().Begin(t.Context(), keystore.TxOptions{})
				require.NoError(t, err)
				t.Cleanup(func() { _ = tx.Rollback() })
				return tx
			}
			one, two := begin(k.one), begin(k.two)
			require.NoError(t, k.place.cut(t.Context(), k.one.name))
			_, err := one.SQL().ExecContext(t.Context(), `SELECT 1`)
			require.Error(t, err)
			require.Equal(t, keystore.FaultUnavailable, k.one.store.Keys().Classify(err), "%v", err)
			_, err = two.SQL().ExecContext(t.Context(), `SELECT 1`)
			require.NoError(t, err)

			claim := keystore.Claim{ID: keystore.ID{Scope: "s", Key: "k"}}
			owner := func(name string) keystore.Outcome {
				verdicts, err := k.two.store.Keys().Acquire(t.Context(), name, []keystore.Claim{claim}, time.Hour)
				require.NoError(t, err)
				return verdicts[0].Outcome
			}
			require.Equal(t, keystore.Fresh, owner("one"))
			require.Equal(t, keystore.Busy, owner("two"))
			k.pass(2 * time.Hour)
			require.Equal(t, keystore.TakenOver, owner("two"))
			require.WithinDuration(t, time.Now().Add(2*time.Hour), k.place.now(), time.Minute)
		})
	}
}
