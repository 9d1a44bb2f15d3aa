package txtest

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
)

// Tx is a transaction that keeps what is published through it.
type Tx struct {
	tx        *sqlx.Tx
	key       string
	deferred  []deferred
	published []Published
	after     []func(context.Context)
	failed    error
}

var _ handlers.Tx = (*Tx)(nil)

type deferred struct {
	check func(rows int64) error
	query string
	args  []any
}

// flush runs what was deferred, in order, up to the first error.
func (t *Tx) flush(ctx context.Context) error {
	queued := t.deferred
	t.deferred = nil
	for _, d := range queued {
		if t.failed != nil {
			break
		}
		t.failed = t.run(ctx, d)
	}
	return t.failed
}

func (t *Tx) run(ctx context.Context, d deferred) error {
	result, err := t.tx.ExecContext(ctx, d.query, d.args...)
	if err != nil || d.check == nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return err
	}
	return d.check(rows)
}

// ExecContext runs what was deferred, then the statement.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext runs what was deferred, then the query.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryxContext runs what was deferred, then the query.
func (t *Tx) QueryxContext(ctx context.Context, query string, args ...any) (*sqlx.Rows, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.tx.QueryxContext(ctx, query, args...)
}

// QueryRowxContext cannot return the error of a deferred statement; the end of the delivery does.
func (t *Tx) QueryRowxContext(ctx context.Context, query string, args ...any) *sqlx.Row {
	_ = t.flush(ctx)
	return t.tx.QueryRowxContext(ctx, query, args...)
}

// QueryRowContext is as QueryRowxContext.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	_ = t.flush(ctx)
	return t.tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext runs what was deferred, then prepares the statement.
func (t *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := t.flush(ctx); err != nil {
		return nil, err
	}
	return t.tx.PrepareContext(ctx, query)
}

// Rebind turns "?" into the placeholders of the dialect.
func (t *Tx) Rebind(query string) string { return t.tx.Rebind(query) }

// DriverName is the sqlx driver's name.
func (t *Tx) DriverName() string { return t.tx.DriverName() }

// BindNamed binds named parameters.
func (t *Tx) BindNamed(query string, arg any) (string, []any, error) {
	return t.tx.BindNamed(query, arg)
}

// Publish keeps the messages; Do returns them if the transaction commits.
func (t *Tx) Publish(_ context.Context, topic string, payloads ...any) error {
	for _, payload := range payloads {
		if msg, ok := payload.(*message.Message); ok {
			t.published = append(t.published, Published{topic, json.RawMessage(msg.Payload)})
			continue
		}
		encoded, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		t.published = append(t.published, Published{topic, encoded})
	}
	return nil
}

// Defer queues a statement.
func (t *Tx) Defer(check func(rows int64) error, query string, args ...any) {
	t.deferred = append(t.deferred, deferred{check, query, args})
}

// AfterCommit registers a hook, which Do calls.
func (t *Tx) AfterCommit(hook func(context.Context)) { t.after = append(t.after, hook) }

// Key is the key of the delivery.
func (t *Tx) Key() string { return t.key }

// Scope is the constant Scope.
func (t *Tx) Scope() string { return Scope }
