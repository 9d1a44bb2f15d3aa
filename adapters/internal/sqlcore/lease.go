package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// check answers claims that bring a token: the lease is still theirs, and locked, or it is lost.
func (c *claimer) check(ctx context.Context, tokened []int) error {
	if len(tokened) == 0 {
		return nil
	}
	if err := c.session.Send(ctx, c.readLocked(tokened)); err != nil {
		return fmt.Errorf("check leases: %w", err)
	}
	for _, i := range tokened {
		v := keystore.Verdict{Outcome: keystore.Lost, Record: keystore.Record{ID: c.claims[i].ID}}
		if r := c.rows[i]; r != nil {
			v.Record = r.Record
			if r.State == keystore.InProgress && r.token == c.claims[i].Token {
				v.Outcome, v.Token = keystore.Fresh, r.token
			}
		}
		c.verdicts[i] = v
	}
	return nil
}

const takeLease = `UPDATE processed_events
SET status = 'in_progress', token = ?, owner = ?, lease_until = {later}, takeovers = takeovers + ?, prior = ?,
	processed_at = {now}, first_at = coalesce(first_at, {now})
WHERE scope = ? AND idempotency_key = ? AND status = ? AND coalesce(token, '') = ?
	AND (status <> 'in_progress' OR owner = ? OR lease_until IS NULL OR lease_until <= {now})`

// lease takes an existing key for the term: a lease of the same owner again, one that is over, or a redriven failure. It returns false
// when somebody else was faster.
func (c *claimer) lease(ctx context.Context, i int, v keystore.Verdict) (bool, error) {
	r := c.rows[i]
	token, taken, prior := newToken(), 1, r.prior
	switch {
	case r.State == keystore.Failed:
		taken, prior = 0, string(keystore.Failed)
	case r.Owner == c.term.owner:
		token, taken = r.token, 0
	}
	s := &Stmt{Query: takeLease, Args: []any{
		token, c.term.owner, Later(c.term.lease), taken, null(prior),
		r.Scope, r.Key, string(r.State), r.token, c.term.owner,
	}}
	if err := c.session.Send(ctx, s); err != nil {
		return false, fmt.Errorf("take over a lease: %w", err)
	}
	if s.Changed == 0 {
		return false, nil
	}
	v.Token, v.Outcome = token, keystore.Fresh
	if v.Record.Takeovers += taken; v.Record.Takeovers > 0 {
		v.Outcome = keystore.TakenOver
	}
	c.verdicts[i] = v
	return true, nil
}

// Acquire implements keystore.Leasing.
func (k *Keys) Acquire(ctx context.Context, owner string, claims []keystore.Claim, lease time.Duration) ([]keystore.Verdict, error) {
	var verdicts []keystore.Verdict
	err := k.inTx(ctx, func(s Session) error {
		c := newClaimer(s, &term{owner, lease}, claims)
		err := c.run(ctx)
		verdicts = c.verdicts
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire keys: %w", err)
	}
	return verdicts, nil
}

const renewLease = `UPDATE processed_events SET lease_until = {later}
WHERE scope = ? AND idempotency_key = ? AND token = ? AND status = 'in_progress'`

// Renew implements keystore.Leasing.
func (k *Keys) Renew(ctx context.Context, id keystore.ID, token string, lease time.Duration) error {
	s := &Stmt{Query: renewLease, Args: []any{Later(lease), id.Scope, id.Key, token}}
	if err := k.sender.Do(Urgent(ctx), s); err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	if s.Changed == 0 {
		return fmt.Errorf("renew lease: %w", keystore.ErrLeaseLost)
	}
	return nil
}

// Complete implements keystore.Leasing.
func (k *Keys) Complete(ctx context.Context, completions []keystore.Completion) error {
	t, err := k.begin(ctx, keystore.TxOptions{})
	if err != nil {
		return fmt.Errorf("complete keys: %w", err)
	}
	defer func() { _ = t.Rollback() }()
	return t.Commit(ctx, completions)
}

// Release implements keystore.Leasing.
func (k *Keys) Release(ctx context.Context, id keystore.ID, token string) error {
	if err := k.sender.Do(ctx, releaseStmts([]leased{{id, token}})...); err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

type leased struct {
	keystore.ID
	token string
}

const restoreFailed = `WITH v(scope, idempotency_key, token, ord) AS ({rows})
UPDATE processed_events SET status = prior, prior = NULL, token = NULL, lease_until = NULL
FROM v WHERE processed_events.scope = v.scope AND processed_events.idempotency_key = v.idempotency_key
	AND processed_events.token = v.token AND status = 'in_progress' AND prior IS NOT NULL`

const deleteLeased = `WITH v(scope, idempotency_key, token, ord) AS ({rows})
DELETE FROM processed_events WHERE status = 'in_progress' AND prior IS NULL
	AND (scope, idempotency_key, token) IN (SELECT v.scope, v.idempotency_key, v.token FROM v)`

// releaseStmts give leases up: a key that had failed before is failed again, any other is gone.
func releaseStmts(keys []leased) []*Stmt {
	set := &Set{Types: []string{"text", "text", "text"}}
	for _, l := range keys {
		set.Rows = append(set.Rows, []any{l.Scope, l.Key, l.token})
	}
	return []*Stmt{{Query: restoreFailed, Set: set}, {Query: deleteLeased, Set: set}}
}

type urgentKey struct{}

// Urgent marks work that goes first where writers queue: renewals of leases.
func Urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }

// IsUrgent reports whether ctx was marked by Urgent.
func IsUrgent(ctx context.Context) bool { return ctx.Value(urgentKey{}) != nil }
