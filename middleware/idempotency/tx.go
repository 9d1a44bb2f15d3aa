package idempotency

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// ErrTxClosed is returned by a Tx after its handler returned, panicked or overran its deadline.
var ErrTxClosed = errors.New("idempotency: the handler's transaction is closed")

// Tx is the transaction of one attempt as its handler sees it: statements, Publish, Defer and AfterCommit, no Commit and no
// Rollback. It satisfies sqlx.ExtContext and handlers.Tx. It is used by one goroutine at a time and
// closed when the handler returns, panics or overruns its deadline.
type Tx struct {
	inner *sqlx.Tx
	fault faultpoint.Hook
	job   *job
	alive context.Context // ends with the attempt, whatever context a statement was given
	cut   func()          // ends alive, and so the statement that an abandoned handler hangs in

	mu       sync.Mutex // held for each call, so that closing waits for no statement but lets none begin
	closed   bool
	hidden   error // the first driver error, which a handler may swallow
	broken   error // the first failure of a deferred statement, after which nothing may commit
	deferred []deferredStatement
	outgoing []outbox.Record
	after    []func(context.Context)
	result   any
}

type deferredStatement struct {
	query string
	args  []any
	check func(rows int64) error
}

var _ sqlx.ExtContext = (*Tx)(nil)

func newTx(alive context.Context, cut func(), inner *sqlx.Tx, j *job, fault faultpoint.Hook) *Tx {
	return &Tx{inner: inner, fault: fault, job: j, alive: alive, cut: cut}
}

// dead is the context of statements on a closed Tx, for methods that cannot return an error at once.
var dead = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrTxClosed)
	return ctx
}()

// begin checks that a statement may run and flushes deferred ones. The caller holds no lock. The context
// that it returns is for the statement; release ends it, where nothing that the statement returned lives on.
func (t *Tx) begin(ctx context.Context) (_ context.Context, release func(), err error) {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed {
		return nil, nil, ErrTxClosed
	}
	ctx, release = joined(ctx, t.alive)
	if err = t.flush(ctx); err == nil {
		err = t.remember(t.fault.At(ctx, faultpoint.BeforeStatement))
	}
	if err != nil {
		release()
	}
	return ctx, release, err
}

// note remembers a driver's error, also one that the handler will hide.
func (t *Tx) note(ctx context.Context, err error) error {
	if err == nil {
		err = t.fault.At(ctx, faultpoint.AfterStatement)
	}
	return t.remember(err)
}

func (t *Tx) remember(err error) error {
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errors.Join(ErrTxClosed, err)
	}
	if t.hidden == nil && !errors.Is(err, sql.ErrNoRows) {
		t.hidden = err
	}
	return err
}

// ExecContext runs a statement.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx, release, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	res, err := t.inner.ExecContext(ctx, query, args...)
	return res, t.note(ctx, err)
}

// PrepareContext prepares a statement; it is closed with the transaction.
func (t *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	ctx, release, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	stmt, err := t.inner.PrepareContext(ctx, query)
	return stmt, t.note(ctx, err)
}

// QueryContext runs a query.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx, _, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := t.inner.QueryContext(ctx, query, args...)
	return rows, t.note(ctx, err)
}

// QueryxContext is sqlx's QueryContext.
func (t *Tx) QueryxContext(ctx context.Context, query string, args ...any) (*sqlx.Rows, error) {
	ctx, _, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := t.inner.QueryxContext(ctx, query, args...)
	return rows, t.note(ctx, err)
}

// QueryRowContext runs a query for one row.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx, _, err := t.begin(ctx)
	if err != nil {
		return t.inner.QueryRowContext(dead, query, args...)
	}
	row := t.inner.QueryRowContext(ctx, query, args...)
	_ = t.note(ctx, row.Err())
	return row
}

// QueryRowxContext is sqlx's QueryRowContext.
func (t *Tx) QueryRowxContext(ctx context.Context, query string, args ...any) *sqlx.Row {
	ctx, _, err := t.begin(ctx)
	if err != nil {
		return t.inner.QueryRowxContext(dead, query, args...)
	}
	row := t.inner.QueryRowxContext(ctx, query, args...)
	_ = t.note(ctx, row.Err())
	return row
}

// Rebind turns '?' into the dialect's placeholders.
func (t *Tx) Rebind(query string) string { return t.inner.Rebind(query) }

// BindNamed is sqlx's: it turns ':name' into the dialect's placeholders.
func (t *Tx) BindNamed(query string, arg any) (string, []any, error) {
	return t.inner.BindNamed(query, arg)
}

// DriverName is the sqlx driver's name.
func (t *Tx) DriverName() string { return t.inner.DriverName() }

// Key is the idempotency key of the handled message.
func (t *Tx) Key() string { return t.job.id.Key }

// Scope is the binding's scope.
func (t *Tx) Scope() string { return t.job.id.Scope }

// SetResult stores the handler's result where the handler has no way to return it (a Watermill HandlerFunc).
func (t *Tx) SetResult(result any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.result = result
	}
}

// Defer queues a statement that runs before the next statement and before the commit. check, where not nil, gets the affected rows.
// A deferred statement that fails, or its check, fails the message, also where the handler overlooks the error.
func (t *Tx) Defer(check func(rows int64) error, query string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deferred = append(t.deferred, deferredStatement{query, args, check})
}

// flush runs the deferred statements. After one has failed it fails for ever, so that the handler's end does, too.
func (t *Tx) flush(ctx context.Context) error {
	t.mu.Lock()
	queue, err := t.deferred, t.broken
	t.deferred = nil
	t.mu.Unlock()
	for _, d := range queue {
		if err == nil {
			err = t.runDeferred(ctx, d)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = err
	return err
}

func (t *Tx) runDeferred(ctx context.Context, d deferredStatement) error {
	res, err := t.inner.ExecContext(ctx, d.query, d.args...)
	if err := t.note(ctx, err); err != nil || d.check == nil {
		return err
	}
	rows, err := res.RowsAffected()
	if err != nil {
		return t.remember(err)
	}
	return d.check(rows)
}

// AfterCommit registers what runs once the transaction has surely committed.
func (t *Tx) AfterCommit(f func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.after = append(t.after, f)
	}
}

// Publish adds messages to the outbox of this transaction. A *message.Message goes as it is, anything else as the JSON
// payload of a new message. UUID and key are derived from the handled message and the ordinal unless the
// author set them; the ordering key is taken over unless set. A message that breaks the contract is refused with an *envelope.Violation.
func (t *Tx) Publish(ctx context.Context, topic string, payloads ...any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrTxClosed
	}
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	for _, p := range payloads {
		record, err := t.job.record(ctx, topic, p, len(t.outgoing))
		if err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		t.outgoing = append(t.outgoing, record)
	}
	return nil
}

// close forbids further statements and returns the driver's error that the handler may have hidden.
func (t *Tx) close() (hidden error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.hidden
}

// asMessage returns a message that is the engine's to change. A message made without an identity may have an empty UUID.
func asMessage(payload any) (*message.Message, error) {
	if msg, ok := payload.(*message.Message); ok {
		return copyMessage(msg), nil
	}
	body, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("payload as JSON: %w", err)
	}
	return message.NewMessage("", body), nil
}

// copyMessage copies a message deeply, without its context.
func copyMessage(msg *message.Message) *message.Message {
	c := message.NewMessage(msg.UUID, append([]byte(nil), msg.Payload...))
	for name, value := range msg.Metadata {
		c.Metadata[name] = value
	}
	return c
}
