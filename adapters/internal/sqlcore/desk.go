package sqlcore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// List implements keystore.Desk.
func (k *Keys) List(ctx context.Context, f keystore.Filter) ([]keystore.Record, error) {
	var w where
	if f.Scope != "" {
		w.add("p.scope = ?", f.Scope)
	}
	if f.State != keystore.Absent {
		w.add("p.status = ?", string(f.State))
	}
	if f.Fingerprint != "" {
		w.add("p.fingerprint = ?", f.Fingerprint)
	}
	if f.Prefix != "" {
		w.add("substr(p.idempotency_key, 1, ?) = ?", Length(f.Prefix), f.Prefix)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultListLimit
	}
	records, err := k.records(ctx, &Stmt{
		Query: `SELECT ` + recordColumns + ` FROM processed_events p` + w.String() + ` ORDER BY p.processed_at DESC LIMIT ?`,
		Args:  append(w.args, int64(limit)),
	})
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	return records, nil
}

func (k *Keys) records(ctx context.Context, s *Stmt) ([]keystore.Record, error) {
	var records []keystore.Record
	s.Row = func(scan Scan) error {
		var r row
		err := r.scan(scan)
		records = append(records, r.Record)
		return err
	}
	err := k.sender.Read(ctx, s)
	return records, err
}

// everyScope walks the scopes by index, one step for each, however many keys they have.
const everyScope = `WITH RECURSIVE scopes(scope) AS (
	SELECT min(scope) FROM processed_events
	UNION ALL
	SELECT (SELECT min(e.scope) FROM processed_events e WHERE e.scope > scopes.scope) FROM scopes WHERE scopes.scope IS NOT NULL)`

const lookupKey = everyScope + `
SELECT ` + recordColumns + ` FROM scopes JOIN processed_events p ON p.scope = scopes.scope AND p.idempotency_key = ? ORDER BY p.scope`

const lookupAttempts = `SELECT a.scope, a.first_at FROM attempts a WHERE a.idempotency_key = ? ORDER BY a.scope`

// Lookup implements keystore.Desk.
func (k *Keys) Lookup(ctx context.Context, key string) ([]keystore.Record, error) {
	records, err := k.records(ctx, &Stmt{Query: lookupKey, Args: []any{key}})
	if err != nil {
		return nil, fmt.Errorf("look up a key: %w", err)
	}
	known := map[string]bool{}
	for _, r := range records {
		known[r.Scope] = true
	}
	tried := &Stmt{Query: lookupAttempts, Args: []any{[]byte(key)}, Row: func(scan Scan) error {
		r := keystore.Record{ID: keystore.ID{Key: key}}
		var first Time
		err := scan(&r.Scope, &first)
		if err == nil && !known[r.Scope] {
			records = append(records, r)
		}
		return err
	}}
	if err := k.sender.Read(ctx, tried); err != nil {
		return nil, fmt.Errorf("look up a key's attempts: %w", err)
	}
	return records, nil
}

const selectKey = `SELECT ` + recordColumns + ` FROM processed_events p WHERE p.scope = ? AND p.idempotency_key = ?`

// readKey reads a key in a session, and locks it where asked; nil where there is none.
func readKey(ctx context.Context, s Session, id keystore.ID, lock bool) (*row, error) {
	var found *row
	stmt := &Stmt{Query: selectKey, Args: []any{id.Scope, id.Key}, Row: func(scan Scan) error {
		found = &row{}
		return found.scan(scan)
	}}
	if lock {
		stmt.Query += ` {lock p}`
	}
	err := s.Send(ctx, stmt)
	return found, err
}

const resolveKey = `UPDATE processed_events SET status = ?, result = ?{json}, processed_at = {now}, expires_at = {later}, token = NULL, lease_until = NULL
WHERE scope = ? AND idempotency_key = ?`

const deleteKey = `DELETE FROM processed_events WHERE scope = ? AND idempotency_key = ?`

// Resolve implements keystore.Desk.
func (k *Keys) Resolve(ctx context.Context, id keystore.ID, to keystore.State, result json.RawMessage, by, why string) error {
	if to != keystore.Completed && to != keystore.Failed && to != keystore.Absent {
		return fmt.Errorf("resolve a key to %q: choose completed, failed or absent", to)
	}
	err := k.inTx(ctx, func(s Session) error { return k.resolve(ctx, s, id, to, result, by, why) })
	if err != nil {
		return fmt.Errorf("resolve a key: %w", err)
	}
	k.committed(false, true)
	return nil
}

func (k *Keys) resolve(ctx context.Context, s Session, id keystore.ID, to keystore.State, result json.RawMessage, by, why string) error {
	known, err := readKey(ctx, s, id, true)
	if err != nil {
		return err
	}
	if known == nil {
		return keystore.ErrNotFound
	}
	if known.State != keystore.InDoubt {
		return keystore.ErrNotInDoubt
	}
	act, err := stamp(ctx, s, parking.Action{By: by, Why: why}, "resolve")
	if err != nil {
		return err
	}
	if to == keystore.Absent {
		err = s.Send(ctx, &Stmt{Query: deleteKey, Args: []any{id.Scope, id.Key}})
	} else {
		err = decideKey(ctx, s, known, to, result)
	}
	if err != nil {
		return err
	}
	if err := resolveParked(ctx, s, id, to, act); err != nil {
		return err
	}
	act.What = "resolve " + cmp.Or(string(to), "absent")
	return s.Send(ctx, logAction(act, id.Scope, id.Key, 0))
}

// decideKey writes a decided key; it is kept from now on for as long as its completion had asked for.
func decideKey(ctx context.Context, s Session, known *row, to keystore.State, result json.RawMessage) error {
	c := keystore.Completion{Claim: keystore.Claim{ID: known.ID}, State: to, Result: result, Retention: cmp.Or(known.retention, unknownRetention)}
	cells, err := completionCells(c)
	if err != nil {
		return err
	}
	return s.Send(ctx, &Stmt{Query: resolveKey, Args: []any{string(to), cells[resultCell], Later(c.Retention), known.Scope, known.Key}})
}

const selectDoubtful = `SELECT ` + parkedColumns + ` FROM parked WHERE scope = ? AND identity = ? AND state = 'in_doubt' {lock parked}`

const (
	dropDoubtful  = `DELETE FROM parked WHERE id = ?`
	rerunDoubtful = `UPDATE parked SET state = 'waiting', redriven = {true}, holds = {false}, due_at = {now}, last_at = {now}, lease_token = NULL, lease_until = NULL, history = ? WHERE id = ?`
)

// resolveParked does to a doubtful key's parked message what was decided.
func resolveParked(ctx context.Context, s Session, id keystore.ID, to keystore.State, act parking.Action) error {
	var rows []parking.Row
	err := s.Send(ctx, &Stmt{Query: selectDoubtful, Args: []any{id.Scope, identity(id.Key, "")}, Row: func(scan Scan) error {
		r, err := scanParked(scan)
		rows = append(rows, r)
		return err
	}})
	if err != nil {
		return err
	}
	for _, r := range rows {
		r.History = append(r.History, act)
		var stmts []*Stmt
		switch to {
		case keystore.Absent:
			stmts = append(stmts, &Stmt{Query: rerunDoubtful, Args: []any{encodeHistory(r.History), r.ID}})
		case keystore.Completed:
			stmts = append(stmts, &Stmt{Query: dropDoubtful, Args: []any{r.ID}})
		case keystore.Failed:
			r.State = parking.Dead
			stmts = append(stmts, &Stmt{Query: dropDoubtful, Args: []any{r.ID}},
				insertParked(r, &origin{id: r.ID, firstAt: Time{r.FirstAt}}))
		}
		if err := s.Send(ctx, stmts...); err != nil {
			return err
		}
	}
	return nil
}

const hasParked = `SELECT count(*) FROM parked WHERE scope = ? AND identity = ?`

// Forget implements keystore.Desk.
func (k *Keys) Forget(ctx context.Context, id keystore.ID, by, why string) error {
	err := k.inTx(ctx, func(s Session) error { return k.forget(ctx, s, id, by, why) })
	if err != nil {
		return fmt.Errorf("forget a key: %w", err)
	}
	return nil
}

func (k *Keys) forget(ctx context.Context, s Session, id keystore.ID, by, why string) error {
	known, err := readKey(ctx, s, id, true)
	if err != nil {
		return err
	}
	if known == nil {
		return keystore.ErrNotFound
	}
	switch known.State {
	case keystore.InProgress:
		return &parking.Refusal{Why: "the key is in progress: wait until its lease is over and it is settled"}
	case keystore.InDoubt:
		return &parking.Refusal{Why: "the key is in doubt: decide it with keys resolve"}
	}
	var parked int64
	err = s.Send(ctx, &Stmt{Query: hasParked, Args: []any{id.Scope, identity(id.Key, "")}, Row: func(scan Scan) error { return scan(&parked) }})
	if err != nil {
		return err
	}
	if parked > 0 {
		return &parking.Refusal{Why: "a message of the key is parked: redrive or drop it first (dlq list)"}
	}
	args := []any{id.Scope, []byte(id.Key)}
	raise, _ := newEpoch()
	return s.Send(ctx, raise,
		&Stmt{Query: deleteKey, Args: []any{id.Scope, id.Key}},
		&Stmt{Query: `DELETE FROM attempts WHERE scope = ? AND idempotency_key = ?`, Args: args},
		logAction(parking.Action{What: "forget", By: by, Why: why}, id.Scope, id.Key, 0))
}

// unknownRetention is how long a decided key is kept where its completion named no retention.
const unknownRetention = 7 * 24 * time.Hour

// Peek implements keystore.Desk.
func (k *Keys) Peek(ctx context.Context, ids []keystore.ID) ([]keystore.Record, error) {
	records := make([]keystore.Record, len(ids))
	for i, id := range ids {
		records[i].ID = id
	}
	for from := 0; from < len(ids); from += maxSetRows {
		part := ids[from:min(from+maxSetRows, len(ids))]
		s := &Stmt{Query: selectKeys, Set: &Set{Types: []string{"text", "text"}}}
		for _, id := range part {
			s.Set.Rows = append(s.Set.Rows, []any{id.Scope, id.Key})
		}
		s.Row = func(scan Scan) error {
			var r row
			var ord int64
			err := r.scan(func(dest ...any) error { return scan(append([]any{&ord}, dest...)...) })
			if err == nil {
				records[from+int(ord)-1] = r.Record
			}
			return err
		}
		if err := k.sender.Read(ctx, s); err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
	}
	return records, nil
}
