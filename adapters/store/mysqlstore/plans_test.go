package mysqlstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

const series = ` WITH RECURSIVE s(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < 20000) SELECT `

var fill = []string{
	`SET SESSION max_recursive_iterations = 100000`,
	`INSERT INTO processed_events (scope, idempotency_key, status, processed_at, expires_at, fingerprint)` + series +
		`concat('s', g % 3), concat('key-', g), 'completed', now(6), now(6) + interval if(g % 3 = 0, -1, 1) hour, concat('payload:1:', g) FROM s`,
	`INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at)` + series +
		`concat('s', g % 3), concat('key-', g), 1, 0, '', '', now(6), now(6) FROM s`,
	`INSERT INTO parked (state, scope, topic, message_uuid, idempotency_key, identity, ordering_key, ordering_id, fingerprint, payload, metadata,
		reason, class, error, attempts, holds, redriven, due_at, first_at, last_at, history)` + series +
		`if(g % 5 = 0, 'dead', 'waiting'), concat('s', g % 3), 't', '', concat('p', g), concat('kp', g), concat('o', g % 1000), concat('oo', g % 1000), '', '', '{}',
		'r', '', '', 1, false, false, now(6) + interval if(g % 4 = 0, -1, 1) hour, now(6), now(6), '[]' FROM s`,
	`INSERT INTO outbox (lane, topic, message_uuid, idempotency_key, ordering_key, metadata, payload, scope, parent_key, created_at, due_at, attempts)` + series +
		`g % 16, 't', concat('u', g), concat('k', g), concat('o', g % 100), '{}', '', '', '', now(6), if(g % 10 = 0, now(6) + interval 1 hour, NULL), 0 FROM s`,
	`ANALYZE TABLE processed_events, attempts, parked, outbox`,
}

// TestF061F079QueriesUseIndexes: what runs all the time reads a small part of large tables.
func TestF061F079QueriesUseIndexes(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	conn, err := s.DB().Connx(t.Context())
	require.NoError(t, err)
	for _, query := range fill {
		_, err := conn.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close())
	for name, op := range operations {
		one, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: w.db.DSN, MaxOpen: 1}, store.Options{})
		require.NoError(t, err)
		before := rowsRead(t, one)
		require.NoError(t, op(t.Context(), one), name)
		read := rowsRead(t, one) - before
		t.Logf("%-22s %d rows", name, read)
		require.Less(t, read, 4000, "%s reads too much of tables of 20000 rows", name)
		require.NoError(t, one.Close())
	}
}

// rowsRead is how often the session went on to a next row, of an index or of a table.
func rowsRead(t *testing.T, s *mysqlstore.Store) (n int) {
	t.Helper()
	require.NoError(t, s.DB().Get(&n, `SELECT CAST(sum(variable_value) AS SIGNED) FROM information_schema.session_status
		WHERE variable_name IN ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT', 'HANDLER_READ_RND', 'HANDLER_READ_KEY')`))
	return n
}

var operations = map[string]func(ctx context.Context, s *mysqlstore.Store) error{
	"claim": func(ctx context.Context, s *mysqlstore.Store) error {
		tx, err := s.Keys().Begin(ctx, keystore.TxOptions{})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		var claims []keystore.Claim
		for i := range 50 {
			claims = append(claims, keystore.Claim{ID: keystore.ID{Scope: "s1", Key: fmt.Sprintf("key-%d", i)}, OrderingKey: "o1"})
		}
		verdicts, err := tx.Claim(ctx, claims)
		if err != nil {
			return err
		}
		var done []keystore.Completion
		for i, v := range verdicts {
			if v.Outcome == keystore.Fresh {
				done = append(done, keystore.Completion{Claim: claims[i], State: keystore.Completed, Retention: time.Hour})
			}
		}
		return tx.Commit(ctx, done)
	},
	"acquire": func(ctx context.Context, s *mysqlstore.Store) error {
		claims := []keystore.Claim{{ID: keystore.ID{Scope: "s1", Key: "leased"}}}
		verdicts, err := s.Keys().Acquire(ctx, "me", claims, time.Hour)
		if err != nil {
			return err
		}
		if err := s.Keys().Renew(ctx, claims[0].ID, verdicts[0].Token, time.Hour); err != nil {
			return err
		}
		return s.Keys().Release(ctx, claims[0].ID, verdicts[0].Token)
	},
	"attempts": func(ctx context.Context, s *mysqlstore.Store) error {
		id := keystore.ID{Scope: "s1", Key: "tried"}
		if _, err := s.Keys().Suspect(ctx, id); err != nil {
			return err
		}
		return s.Keys().Absolve(ctx, id)
	},
	"clean": func(ctx context.Context, s *mysqlstore.Store) error {
		_, err := s.Keys().Clean(ctx, "s0", 100)
		return err
	},
	"list by fingerprint": func(ctx context.Context, s *mysqlstore.Store) error {
		_, err := s.Keys().List(ctx, keystore.Filter{Fingerprint: "payload:1:77"})
		return err
	},
	"look up a key": func(ctx context.Context, s *mysqlstore.Store) error {
		_, err := s.Keys().Lookup(ctx, "key-77")
		return err
	},
	"lease due": func(ctx context.Context, s *mysqlstore.Store) error {
		rows, err := s.Parking().LeaseDue(ctx, []string{"s0", "s1"}, 10, time.Hour)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := s.Parking().Postpone(ctx, r.Lease, time.Hour, r.Row); err != nil {
				return err
			}
		}
		_, _, err = s.Parking().NextDue(ctx, []string{"s0", "s1"})
		return err
	},
	"prune": func(ctx context.Context, s *mysqlstore.Store) error {
		_, err := s.Parking().Prune(ctx, time.Hour, 10)
		return err
	},
	"parked of a key": func(ctx context.Context, s *mysqlstore.Store) error {
		_, err := s.Parking().List(ctx, parking.Filter{Key: "p77"})
		return err
	},
	"relay": func(ctx context.Context, s *mysqlstore.Store) error {
		lanes, err := s.Outbox().AcquireLanes(ctx, "me", time.Hour)
		if err != nil {
			return err
		}
		records, err := s.Outbox().Fetch(ctx, lanes[3], 50)
		if err != nil {
			return err
		}
		ids := make([]int64, len(records))
		for i, r := range records {
			ids[i] = r.ID
		}
		return s.Outbox().Done(ctx, lanes[3], ids)
	},
}
