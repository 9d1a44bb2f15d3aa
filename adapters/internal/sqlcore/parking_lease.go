package sqlcore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/middleware/parking"
)

var _ parking.Store = (*Parking)(nil)

const parkedColumns = `id, state, scope, topic, message_uuid, idempotency_key, ordering_key, fingerprint, payload, metadata,
	reason, class, error, attempts, holds, redriven, due_at, first_at, last_at, history`

func scanParked(scan Scan) (parking.Row, error) {
	var (
		r                                         parking.Row
		state                                     string
		uuid, key, order, metadata, text, history []byte
		due, first, last                          Time
	)
	err := scan(&r.ID, &state, &r.Scope, &r.Topic, &uuid, &key, &order, &r.Fingerprint, &r.Payload, &metadata,
		&r.Reason, &r.Class, &text, &r.Attempts, &r.Holds, &r.Redriven, &due, &first, &last, &history)
	if err != nil {
		return r, err
	}
	r.State, r.UUID, r.Key, r.OrderingKey, r.Error = parking.State(state), string(uuid), string(key), string(order), string(text)
	r.DueAt, r.FirstAt, r.LastAt = due.Time, first.Time, last.Time
	if r.Metadata, err = decodeMetadata(metadata); err != nil {
		return r, err
	}
	r.History, err = decodeHistory(history)
	return r, err
}

// aHead is the test that no older row of the ordering key of p waits, is leased or holds.
const aHead = `(p.ordering_id IS NULL OR NOT EXISTS (SELECT 1 FROM parked o WHERE o.scope = p.scope AND o.ordering_id = p.ordering_id
	AND o.id < p.id AND (o.state = 'waiting' OR o.holds)))`

const leaseDue = `WITH due AS MATERIALIZED (
	SELECT p.id FROM parked p
	WHERE p.state = 'waiting' AND p.scope {list} AND p.due_at <= {clock} AND (p.lease_until IS NULL OR p.lease_until <= {clock}) AND ` + aHead + `
	ORDER BY p.due_at, p.id LIMIT ? {skip p})
UPDATE parked SET suspect = (lease_token IS NOT NULL), lease_token = ?, lease_until = {later} WHERE id IN (SELECT due.id FROM due)
RETURNING suspect, ` + parkedColumns

// LeaseDue implements parking.Store.
func (p *Parking) LeaseDue(ctx context.Context, scopes []string, limit int, lease time.Duration) ([]parking.Leased, error) {
	if len(scopes) == 0 || limit <= 0 {
		return nil, nil
	}
	token := newToken()
	var rows []parking.Leased
	s := &Stmt{Query: leaseDue, List: textList(scopes), Args: []any{int64(limit), token, Later(lease)}, Row: func(scan Scan) error {
		l := parking.Leased{}
		var err error
		l.Row, err = scanParked(func(dest ...any) error { return scan(append([]any{&l.Suspect}, dest...)...) })
		l.Lease = parking.Lease{ID: l.ID, Token: token}
		rows = append(rows, l)
		return err
	}}
	if err := p.sender.Do(ctx, s); err != nil {
		return nil, fmt.Errorf("lease parked messages: %w", err)
	}
	slices.SortFunc(rows, func(a, b parking.Leased) int { return a.DueAt.Compare(b.DueAt) })
	return rows, nil
}

func textList(values []string) *List {
	l := &List{Type: "text"}
	for _, v := range values {
		l.Values = append(l.Values, v)
	}
	return l
}

const nextDue = `WITH v(scope, ord) AS ({rows})
SELECT min(n.at), {now} FROM (
	SELECT (SELECT p.due_at FROM parked p WHERE p.state = 'waiting' AND p.scope = v.scope AND p.lease_token IS NULL AND ` + aHead + `
		ORDER BY p.due_at LIMIT 1) AS at FROM v
	UNION ALL
	SELECT CASE WHEN p.lease_until > p.due_at THEN p.lease_until ELSE p.due_at END FROM parked p JOIN v ON v.scope = p.scope
	WHERE p.state = 'waiting' AND p.lease_token IS NOT NULL AND ` + aHead + `) n`

// NextDue implements parking.Store. Rows behind an older one of their ordering key do not count: it is the older one that is due.
func (p *Parking) NextDue(ctx context.Context, scopes []string) (time.Duration, bool, error) {
	if len(scopes) == 0 {
		return 0, false, nil
	}
	var due, now Time
	s := &Stmt{Query: nextDue, Set: &Set{Types: []string{"text"}}, Row: func(scan Scan) error { return scan(&due, &now) }}
	for _, scope := range scopes {
		s.Set.Rows = append(s.Set.Rows, []any{scope})
	}
	if err := p.sender.Read(ctx, s); err != nil {
		return 0, false, fmt.Errorf("look for the next due message: %w", err)
	}
	if due.IsZero() {
		return 0, false, nil
	}
	return due.Sub(now.Time), true, nil
}
