package sqlcore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// errNotClaimed is a completion of a key that the transaction does not hold: a fault of the caller.
var errNotClaimed = errors.New("the completion's key was not claimed in this transaction")

// plan is what a commit writes, in the order in which it takes locks: keys, then parked rows, then the outbox.
type plan struct {
	held     *Set // completions of keys that this transaction claimed
	expected *Set // of these, those that came as the claim expected, with a result
	leased   *Set // completions guarded by their token
	absent   []keystore.ID
	released []leased
	parks    []keystore.Completion
	outgoing []outbox.Record
	kept     *Set // outputs that stay with their keys
}

// Commit implements keystore.Tx.
func (t *tx) Commit(ctx context.Context, completions []keystore.Completion) error {
	p, err := t.plan(completions)
	if err != nil {
		return err
	}
	if err := t.guarded(ctx, p); err != nil {
		return fmt.Errorf("complete keys: %w", err)
	}
	if err := t.session.Commit(ctx, p.final()...); err != nil {
		if errors.Is(err, keystore.ErrOutcomeUnknown) {
			t.core.committed(len(p.outgoing) > 0, len(p.parks) > 0)
		}
		return fmt.Errorf("commit: %w", err)
	}
	t.core.committed(len(p.outgoing) > 0, len(p.parks) > 0)
	return nil
}

func (t *tx) plan(completions []keystore.Completion) (*plan, error) {
	p := &plan{
		kept:     keeps(completions),
		held:     &Set{Types: []string{"text", "text", "text", "text", "later", "text"}},
		expected: &Set{Types: []string{"text", "text", "text"}},
		leased:   &Set{Types: []string{"text", "text", "text", "text", "later", "text", "text"}},
	}
	open := make(map[keystore.ID]held, len(t.held))
	for id, h := range t.held {
		open[id] = h
	}
	for _, c := range completions {
		if err := t.add(p, open, c); err != nil {
			return nil, err
		}
		p.outgoing = append(p.outgoing, c.Outbox...)
		if c.Park != nil || c.Settles != nil {
			p.parks = append(p.parks, c)
		}
	}
	for id, h := range open {
		if h.fresh {
			p.absent = append(p.absent, id)
		}
	}
	return p, nil
}

// add plans what becomes of a completion's key.
func (t *tx) add(p *plan, open map[keystore.ID]held, c keystore.Completion) error {
	if c.Keep || c.Claim.Key == "" {
		return nil
	}
	if c.Claim.Token != "" && c.State == keystore.Absent {
		p.released = append(p.released, leased{c.Claim.ID, c.Claim.Token})
		return nil
	}
	h, mine := open[c.Claim.ID]
	if c.Claim.Token == "" && !mine {
		return fmt.Errorf("scope %s: %w", c.Claim.Scope, errNotClaimed)
	}
	if c.State == keystore.Absent {
		return nil // a fresh key that stays in open is removed, what was there before stays
	}
	cells, err := completionCells(c)
	if err != nil {
		return err
	}
	if c.Claim.Token != "" {
		p.leased.Rows = append(p.leased.Rows, append(cells, c.Claim.Token))
		return nil
	}
	delete(open, c.Claim.ID)
	switch {
	case !h.expected(c):
		p.held.Rows = append(p.held.Rows, cells)
	case c.Result != nil:
		p.expected.Rows = append(p.expected.Rows, []any{c.Claim.Scope, c.Claim.Key, cells[resultCell]})
	}
	return nil
}

// longAgo is when a key's time is written again at the commit, because it counts from there.
const longAgo = time.Second

// expected reports that the row that the claim wrote needs nothing but the result.
func (h held) expected(c keystore.Completion) bool {
	return h.fresh && c.State == keystore.Completed && h.claim.Retention == c.Retention && h.claim.Owner == c.Owner && time.Since(h.at) < longAgo
}

// resultCell is the result's place in what completionCells returns.
const resultCell = 3

const maxOwner = 255

func completionCells(c keystore.Completion) ([]any, error) {
	var result any
	if c.Result != nil {
		if len(c.Result) > keystore.MaxResult {
			return nil, fmt.Errorf("%d bytes: %w", len(c.Result), keystore.ErrResultTooLarge)
		}
		if !json.Valid(c.Result) {
			return nil, fmt.Errorf("scope %s: the result is not JSON", c.Claim.Scope)
		}
		result = string(c.Result)
	}
	return []any{c.Claim.Scope, c.Claim.Key, string(c.State), result, Later(c.Retention), readable(c.Owner, maxOwner)}, nil
}

const completeSet = `
UPDATE processed_events SET status = v.status, result = v.result{json}, processed_at = {now}, expires_at = {at v.expires},
	owner = CASE WHEN v.owner = '' THEN processed_events.owner ELSE v.owner END, token = NULL, lease_until = NULL, prior = NULL
FROM v WHERE processed_events.scope = v.scope AND processed_events.idempotency_key = v.idempotency_key`

const completeHeld = `WITH v(scope, idempotency_key, status, result, expires, owner, ord) AS ({rows})` + completeSet

const completeExpected = `WITH v(scope, idempotency_key, result, ord) AS ({rows})
UPDATE processed_events SET result = v.result{json}
FROM v WHERE processed_events.scope = v.scope AND processed_events.idempotency_key = v.idempotency_key`

const completeLeased = `WITH v(scope, idempotency_key, status, result, expires, owner, token, ord) AS ({rows})` + completeSet + `
	AND processed_events.token = v.token AND processed_events.status = 'in_progress'`

// guarded runs what must be seen to have worked before the commit: changes guarded by a token.
func (t *tx) guarded(ctx context.Context, p *plan) error {
	var keys []*Stmt
	want := len(p.leased.Rows) + len(p.released)
	if len(p.leased.Rows) > 0 {
		keys = append(keys, &Stmt{Query: completeLeased, Set: p.leased})
	}
	if len(p.released) > 0 {
		keys = append(keys, releaseStmts(p.released)...)
	}
	if want > 0 {
		if err := t.session.Send(ctx, keys...); err != nil {
			return err
		}
		for _, s := range keys {
			want -= int(s.Changed)
		}
		if want != 0 {
			return keystore.ErrLeaseLost
		}
	}
	for _, c := range p.parks {
		if err := writeParked(ctx, t.session, c.Park, c.Settles); err != nil {
			return err
		}
	}
	return nil
}

// final are the statements that travel with COMMIT.
func (p *plan) final() []*Stmt {
	var stmts []*Stmt
	if len(p.held.Rows) > 0 {
		stmts = append(stmts, &Stmt{Query: completeHeld, Set: p.held})
	}
	if len(p.expected.Rows) > 0 {
		stmts = append(stmts, &Stmt{Query: completeExpected, Set: p.expected})
	}
	if len(p.kept.Rows) > 0 {
		stmts = append(stmts, &Stmt{Query: keepOutputs, Set: p.kept})
	}
	if len(p.absent) > 0 {
		stmts = append(stmts, deleteOf(p.absent))
	}
	return append(stmts, insertOutbox(p.outgoing)...)
}
