package sqlcore

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

const defaultListLimit = 100

// where collects conditions of a query.
type where struct {
	terms []string
	args  []any
}

func (w *where) add(term string, args ...any) {
	w.terms = append(w.terms, term)
	w.args = append(w.args, args...)
}

func (w *where) String() string {
	if len(w.terms) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.terms, " AND ")
}

// List implements parking.Desk.
func (p *Parking) List(ctx context.Context, f parking.Filter) ([]parking.Row, error) {
	var w where
	if len(f.States) > 0 {
		w.add("state IN (?" + strings.Repeat(", ?", len(f.States)-1) + ")")
		for _, s := range f.States {
			w.args = append(w.args, string(s))
		}
	}
	if f.Scope != "" {
		w.add("scope = ?", f.Scope)
	}
	if f.Reason != "" {
		w.add("reason = ?", f.Reason)
	}
	if f.Key != "" {
		w.add("identity = ?", identity(f.Key, ""))
	}
	if f.Since > 0 {
		w.add("last_at >= {later}", Later(-f.Since))
	}
	if f.AfterID > 0 {
		w.add("id > ?", f.AfterID)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultListLimit
	}
	return p.rows(ctx, &Stmt{Query: `SELECT ` + parkedColumns + ` FROM parked` + w.String() + ` ORDER BY id LIMIT ?`, Args: append(w.args, int64(limit))})
}

func (p *Parking) rows(ctx context.Context, s *Stmt) ([]parking.Row, error) {
	var rows []parking.Row
	s.Row = func(scan Scan) error {
		r, err := scanParked(scan)
		rows = append(rows, r)
		return err
	}
	if err := p.sender.Read(ctx, s); err != nil {
		return nil, fmt.Errorf("list parked messages: %w", err)
	}
	return rows, nil
}

const selectParkedRow = `SELECT ` + parkedColumns + ` FROM parked WHERE id = ?`

// Get implements parking.Desk.
func (p *Parking) Get(ctx context.Context, id int64) (parking.Row, error) {
	rows, err := p.rows(ctx, &Stmt{Query: selectParkedRow, Args: []any{id}})
	if err != nil {
		return parking.Row{}, err
	}
	if len(rows) == 0 {
		return parking.Row{}, fmt.Errorf("parked message %d: %w", id, parking.ErrNotFound)
	}
	return rows[0], nil
}

// locked reads a row of one state and keeps it locked; nil where there is none.
func lockedRow(ctx context.Context, s Session, id int64, state parking.State) (*parking.Row, error) {
	var row *parking.Row
	err := s.Send(ctx, &Stmt{Query: selectParkedRow + ` AND state = ? {lock parked}`, Args: []any{id, string(state)}, Row: func(scan Scan) error {
		r, err := scanParked(scan)
		row = &r
		return err
	}})
	return row, err
}

const redrive = `UPDATE parked SET state = 'waiting', redriven = {true}, holds = {false}, due_at = {now}, last_at = {now}, lease_token = NULL, lease_until = NULL,
	idempotency_key = ?, identity = ?, history = ? WHERE id = ? AND state = 'dead'`

// Redrive implements parking.Desk.
func (p *Parking) Redrive(ctx context.Context, id int64, asKey string, act parking.Action) error {
	err := p.inTx(ctx, func(s Session) error { return p.redrive(ctx, s, id, asKey, act) })
	if err != nil && p.dialect.Unique(err) {
		err = &parking.Refusal{Why: fmt.Sprintf("message %d is not sent back: another copy of the same message waits already; its run settles the key", id)}
	}
	if err != nil {
		return fmt.Errorf("redrive message %d: %w", id, err)
	}
	p.committed(false, true)
	return nil
}

func (p *Parking) redrive(ctx context.Context, s Session, id int64, asKey string, act parking.Action) error {
	row, err := lockedRow(ctx, s, id, parking.Dead)
	if err != nil {
		return err
	}
	if row == nil {
		return parking.ErrNotFound
	}
	if asKey == "" {
		if err := refuseCompleted(ctx, s, *row); err != nil {
			return err
		}
		asKey = row.Key
	}
	act, err = stamp(ctx, s, act, "redrive")
	if err != nil {
		return err
	}
	return s.Send(ctx,
		&Stmt{Query: redrive, Args: []any{[]byte(asKey), identity(asKey, row.UUID), encodeHistory(append(row.History, act)), id}},
		logAction(act, row.Scope, row.Key, id))
}

// refuseCompleted refuses to run a message again whose effect is there.
func refuseCompleted(ctx context.Context, s Session, r parking.Row) error {
	if r.Key == "" {
		return nil
	}
	known, err := readKey(ctx, s, keystore.ID{Scope: r.Scope, Key: r.Key}, false)
	if err != nil || known == nil || known.State != keystore.Completed {
		return err
	}
	return &parking.Refusal{Why: fmt.Sprintf("message %d is not sent back: its key is completed, so it would be skipped or refused again; "+
		"send it under another key (--as-key) if its own effect is wanted, or drop it", r.ID)}
}

const dropDead = `DELETE FROM parked WHERE id = ? AND state = 'dead'`

// Drop implements parking.Desk.
func (p *Parking) Drop(ctx context.Context, id int64, act parking.Action) error {
	err := p.inTx(ctx, func(s Session) error {
		row, err := lockedRow(ctx, s, id, parking.Dead)
		if err != nil {
			return err
		}
		if row == nil {
			return parking.ErrNotFound
		}
		if act, err = stamp(ctx, s, act, "drop"); err != nil {
			return err
		}
		return s.Send(ctx, &Stmt{Query: dropDead, Args: []any{id}}, logAction(act, row.Scope, row.Key, id))
	})
	if err != nil {
		return fmt.Errorf("drop message %d: %w", id, err)
	}
	p.committed(false, true)
	return nil
}

const countParked = `SELECT scope, state, count(*), min(first_at), {now} FROM parked GROUP BY scope, state ORDER BY scope, state`

// Counts implements parking.Desk.
func (p *Parking) Counts(ctx context.Context) ([]parking.Count, error) {
	var counts []parking.Count
	s := &Stmt{Query: countParked, Row: func(scan Scan) error {
		var c parking.Count
		var state string
		var first, now Time
		err := scan(&c.Scope, &state, &c.Rows, &first, &now)
		c.State, c.OldestAge = parking.State(state), max(now.Sub(first.Time), 0)
		counts = append(counts, c)
		return err
	}}
	if err := p.sender.Read(ctx, s); err != nil {
		return nil, fmt.Errorf("count parked messages: %w", err)
	}
	return counts, nil
}

const prune = `WITH old AS MATERIALIZED (SELECT p.id FROM parked p WHERE p.state = 'dead' AND p.last_at < {later} ORDER BY p.last_at LIMIT ? {skip p})
DELETE FROM parked WHERE id IN (SELECT old.id FROM old)`

// Prune implements parking.Desk.
func (p *Parking) Prune(ctx context.Context, retention time.Duration, limit int) (int, error) {
	s := &Stmt{Query: prune, Args: []any{Later(-retention), int64(limit)}}
	if err := p.sender.Do(ctx, s); err != nil {
		return 0, fmt.Errorf("prune dead letters: %w", err)
	}
	return int(s.Changed), nil
}

const insertAction = `INSERT INTO desk_actions (at, what, who, why, scope, idempotency_key, parked_id) VALUES ({now}, ?, ?, ?, ?, ?, ?)`

// logAction records what a person did, beyond the life of the row.
func logAction(act parking.Action, scope, key string, parkedID int64) *Stmt {
	return &Stmt{Query: insertAction, Args: []any{act.What, readable(act.By, 255), readable(act.Why, maxErrorText), scope, []byte(key), parkedID}}
}

// stamp fills in what an action leaves open, with the store's clock.
func stamp(ctx context.Context, s Session, act parking.Action, what string) (parking.Action, error) {
	if act.What == "" {
		act.What = what
	}
	if !act.At.IsZero() {
		return act, nil
	}
	var now Time
	err := s.Send(ctx, &Stmt{Query: `SELECT {now}`, Row: func(scan Scan) error { return scan(&now) }})
	act.At = now.Time
	return act, err
}

func decodeHistory(b []byte) (h []parking.Action, err error) {
	if err = json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("decode the history of a parked message: %w", err)
	}
	return h, nil
}
