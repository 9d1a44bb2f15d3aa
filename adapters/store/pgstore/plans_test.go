package pgstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

const fill = `
INSERT INTO processed_events (scope, idempotency_key, status, processed_at, expires_at, fingerprint)
SELECT 's' || g % 3, 'key-' || g, 'completed', now(), now() + CASE WHEN g % 3 = 0 THEN interval '-1 h' ELSE interval '1 h' END, 'payload:1:' || g FROM generate_series(1, 30000) g;
INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at)
SELECT 's' || g % 3, convert_to('key-' || g, 'UTF8'), 1, 0, '', '', now(), now() FROM generate_series(1, 20000) g;
INSERT INTO parked (state, scope, topic, message_uuid, idempotency_key, identity, ordering_key, ordering_id, fingerprint, payload, metadata,
	reason, class, error, attempts, holds, redriven, due_at, first_at, last_at, history)
SELECT CASE WHEN g % 5 = 0 THEN 'dead' ELSE 'waiting' END, 's' || g % 3, 't', '', convert_to('p' || g, 'UTF8'), convert_to('kp' || g, 'UTF8'), convert_to('o' || g % 1000, 'UTF8'), convert_to('oo' || g % 1000, 'UTF8'), '', '', '{}',
	'r', '', '', 1, false, false, now() + interval '1 h', now(), now(), '[]' FROM generate_series(1, 20000) g;
INSERT INTO outbox (lane, topic, message_uuid, idempotency_key, ordering_key, metadata, payload, scope, parent_key, created_at, due_at, attempts)
SELECT g % 16, 't', 'u' || g, 'k' || g, 'o' || g % 100, '{}', '', '', '', now(), CASE WHEN g % 10 = 0 THEN now() + interval '1 h' END, CASE WHEN g % 10 = 0 THEN 1 ELSE 0 END FROM generate_series(1, 20000) g;
ANALYZE`

// TestF061F079QueriesUseIndexes: what runs all the time reads no large table from its first to its last row.
func TestF061F079QueriesUseIndexes(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t)
	run(t, s, fill)
	scans := func() map[string]int64 {
		rows := []struct {
			Name  string `db:"relname"`
			Scans int64  `db:"seq_scan"`
		}{}
		db, err := sqlx.Open("pgx", w.db.DSN)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, db.Select(&rows, `SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('processed_events', 'attempts', 'parked', 'outbox')`, w.db.Schema))
		got := map[string]int64{}
		for _, r := range rows {
			got[r.Name] = r.Scans
		}
		return got
	}
	// A session tells its counts when it ends.
	require.NoError(t, s.Close())
	settled := func() map[string]int64 {
		last := scans()
		require.Eventually(t, func() bool {
			now := scans()
			same := fmt.Sprint(now) == fmt.Sprint(last)
			last = now
			return same
		}, 10*time.Second, 300*time.Millisecond)
		return last
	}
	before := settled()
	for name, op := range operations {
		one, err := pgstore.Open(t.Context(), pgstore.Config{DSN: w.db.DSN, MaxOpen: 2}, store.Options{})
		require.NoError(t, err)
		for range 8 { // beyond five executions a prepared statement may get a generic plan
			require.NoError(t, op(t.Context(), one), name)
		}
		require.NoError(t, one.Close())
		after := settled()
		require.Equal(t, before, after, "%s reads a whole table", name)
	}
}

var operations = map[string]func(ctx context.Context, s *pgstore.Store) error{
	"claim": func(ctx context.Context, s *pgstore.Store) error {
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
	"acquire": func(ctx context.Context, s *pgstore.Store) error {
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
	"attempts": func(ctx context.Context, s *pgstore.Store) error {
		id := keystore.ID{Scope: "s1", Key: "tried"}
		if _, err := s.Keys().Suspect(ctx, id); err != nil {
			return err
		}
		return s.Keys().Absolve(ctx, id)
	},
	"clean": func(ctx context.Context, s *pgstore.Store) error {
		_, err := s.Keys().Clean(ctx, "s0", 100)
		return err
	},
	"list by fingerprint": func(ctx context.Context, s *pgstore.Store) error {
		_, err := s.Keys().List(ctx, keystore.Filter{Fingerprint: "payload:1:77"})
		return err
	},
	"look up a key": func(ctx context.Context, s *pgstore.Store) error {
		_, err := s.Keys().Lookup(ctx, "key-77")
		return err
	},
	"lease due": func(ctx context.Context, s *pgstore.Store) error {
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
	"prune": func(ctx context.Context, s *pgstore.Store) error {
		_, err := s.Parking().Prune(ctx, time.Hour, 10)
		return err
	},
	"parked of a key": func(ctx context.Context, s *pgstore.Store) error {
		_, err := s.Parking().List(ctx, parking.Filter{Key: "p77"})
		return err
	},
	"relay": func(ctx context.Context, s *pgstore.Store) error {
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
