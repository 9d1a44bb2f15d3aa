package sqlcore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/middleware/keystore"
)

const countFailure = `INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at, next_at)
VALUES (?, ?, 1, 0, ?, ?, {now}, {now}, {later})
ON CONFLICT (scope, idempotency_key) DO UPDATE SET failures = attempts.failures + 1, last_class = excluded.last_class,
	last_error = excluded.last_error, last_at = excluded.last_at, next_at = excluded.next_at
RETURNING failures`

// Count implements keystore.Attempts.
func (k *Keys) Count(ctx context.Context, id keystore.ID, f keystore.Failure) (int, error) {
	n, err := k.number(ctx, &Stmt{Query: countFailure, Args: []any{
		id.Scope, []byte(id.Key), readable(f.Class, 255), []byte(cut(f.Error, maxErrorText)), laterOrNil(f.RetryIn),
	}})
	if err != nil {
		return 0, fmt.Errorf("count a failure: %w", err)
	}
	return n, nil
}

const noteSuspect = `INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at)
VALUES (?, ?, 0, 1, '', {empty}, {now}, {now})
ON CONFLICT (scope, idempotency_key) DO UPDATE SET suspected = attempts.suspected + 1, last_at = excluded.last_at
RETURNING suspected`

// Suspect implements keystore.Attempts.
func (k *Keys) Suspect(ctx context.Context, id keystore.ID) (int, error) {
	n, err := k.number(ctx, &Stmt{Query: noteSuspect, Args: []any{id.Scope, []byte(id.Key)}})
	if err != nil {
		return 0, fmt.Errorf("note a suspect: %w", err)
	}
	return n, nil
}

// number runs a statement that returns one number.
func (k *Keys) number(ctx context.Context, s *Stmt) (int, error) {
	var n int
	s.Row = func(scan Scan) error { return scan(&n) }
	err := k.sender.Do(ctx, s)
	return n, err
}

const (
	absolve      = `UPDATE attempts SET suspected = suspected - 1 WHERE scope = ? AND idempotency_key = ? AND suspected > 0`
	dropAbsolved = `DELETE FROM attempts WHERE scope = ? AND idempotency_key = ? AND suspected = 0 AND failures = 0`
)

// Absolve implements keystore.Attempts.
func (k *Keys) Absolve(ctx context.Context, id keystore.ID) error {
	args := []any{id.Scope, []byte(id.Key)}
	if err := k.sender.Do(ctx, &Stmt{Query: absolve, Args: args}, &Stmt{Query: dropAbsolved, Args: args}); err != nil {
		return fmt.Errorf("absolve a suspect: %w", err)
	}
	return nil
}

const selectAttempt = `SELECT failures, suspected, last_class, last_error, first_at, last_at, next_at FROM attempts WHERE scope = ? AND idempotency_key = ?`

// Attempt implements keystore.Attempts.
func (k *Keys) Attempt(ctx context.Context, id keystore.ID) (keystore.Attempt, error) {
	var a keystore.Attempt
	s := &Stmt{Query: selectAttempt, Args: []any{id.Scope, []byte(id.Key)}, Row: func(scan Scan) error {
		var first, last, next Time
		var text []byte
		err := scan(&a.Failures, &a.Suspected, &a.LastClass, &text, &first, &last, &next)
		a.LastError, a.FirstAt, a.LastAt, a.NextAt = string(text), first.Time, last.Time, next.Time
		return err
	}}
	if err := k.sender.Read(ctx, s); err != nil {
		return keystore.Attempt{}, fmt.Errorf("read attempts: %w", err)
	}
	return a, nil
}
