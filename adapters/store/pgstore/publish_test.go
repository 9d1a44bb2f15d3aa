package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// TestPublishThroughTransactionsOfOthers: code outside of handlers writes messages in its own transaction, whatever kind it is; they are there when
// it commits, and not before, nor if it rolls back.
func TestPublishThroughTransactionsOfOthers(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	native, err := pgx.Connect(t.Context(), w.db.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, native.Close(t.Context())) }()
	record := func(key string) []outbox.Record { return []outbox.Record{{Topic: "t", UUID: key, Key: key}} }
	there := func() (keys []string) {
		records, err := s.Outbox().List(t.Context(), false, 10)
		require.NoError(t, err)
		for _, r := range records {
			keys = append(keys, r.Key)
		}
		return keys
	}

	standard, err := s.DB().DB.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), standard, record("sql")))
	require.Empty(t, there())
	require.NoError(t, standard.Commit())

	extended, err := s.DB().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), extended, record("sqlx")))
	require.NoError(t, extended.Commit())

	own, err := native.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), own, record("pgx")))
	require.NoError(t, own.Commit(t.Context()))

	undone, err := native.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Publish(t.Context(), undone, record("undone")))
	require.NoError(t, undone.Rollback(t.Context()))

	require.Equal(t, []string{"sql", "sqlx", "pgx"}, there())
	require.ErrorContains(t, s.Publish(t.Context(), s.DB(), record("none")), "*sqlx.DB")
}
