package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
)

const selectExpired = `SELECT p.idempotency_key FROM processed_events p
WHERE p.scope = ? AND p.status IN ('completed', 'failed') AND p.expires_at <= {clock}
	AND NOT EXISTS (SELECT 1 FROM parked k WHERE k.scope = p.scope AND k.identity = {ident p.idempotency_key})
ORDER BY p.expires_at LIMIT ? {skip p}`

const deleteAttempts = `DELETE FROM attempts WHERE scope = ? AND idempotency_key {list}`

// attemptsAge is how long attempts are kept that no key takes along: their message was dropped, or never had a valid key.
const attemptsAge = 90 * 24 * time.Hour

const deleteOldAttempts = `WITH old AS MATERIALIZED (SELECT a.idempotency_key FROM attempts a WHERE a.scope = ? AND a.last_at < {later} ORDER BY a.last_at LIMIT ? {skip a})
DELETE FROM attempts WHERE scope = ? AND idempotency_key IN (SELECT old.idempotency_key FROM old)`

// Clean implements keystore.Desk. Several cleaners at once take different keys; none waits for a claim.
func (k *Keys) Clean(ctx context.Context, scope string, limit int) (int, error) {
	var ids []keystore.ID
	err := k.inTx(ctx, func(s Session) error {
		old := &Stmt{Query: deleteOldAttempts, Args: []any{scope, Later(-attemptsAge), int64(limit), scope}}
		err := s.Send(ctx, old, &Stmt{Query: selectExpired, Args: []any{scope, int64(limit)}, Row: func(scan Scan) error {
			id := keystore.ID{Scope: scope}
			err := scan(&id.Key)
			ids = append(ids, id)
			return err
		}})
		if err != nil || len(ids) == 0 {
			return err
		}
		keys := &List{Type: "bytes"}
		for _, id := range ids {
			keys.Values = append(keys.Values, []byte(id.Key))
		}
		return s.Send(ctx, deleteOf(ids), &Stmt{Query: deleteAttempts, Args: []any{scope}, List: keys})
	})
	if err != nil {
		return 0, fmt.Errorf("clean expired keys: %w", err)
	}
	return len(ids), nil
}

const countScopes = `SELECT scope, CAST(sum(keys) AS bigint) FROM (
	SELECT scope, count(*) AS keys FROM processed_events GROUP BY scope
	UNION ALL SELECT DISTINCT scope, 0 FROM parked) s GROUP BY scope`

// Scopes implements keystore.Desk.
func (k *Keys) Scopes(ctx context.Context) (map[string]int64, error) {
	scopes := map[string]int64{}
	s := &Stmt{Query: countScopes, Row: func(scan Scan) error {
		var scope string
		var keys int64
		err := scan(&scope, &keys)
		scopes[scope] = keys
		return err
	}}
	if err := k.sender.Read(ctx, s); err != nil {
		return nil, fmt.Errorf("list scopes: %w", err)
	}
	return scopes, nil
}
