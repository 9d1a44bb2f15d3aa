package handlers

import (
	"context"
	"database/sql"

	"github.com/jmoiron/sqlx"
)

// Tx is the transaction of one attempt. It satisfies sqlx.ExtContext and the interface that sqlc generates
// against; it has no Commit and no Rollback. It is used by one goroutine at a time and is closed when
// the handler returns, panics or overruns its deadline: later calls fail.
type Tx interface {
	sqlx.ExtContext
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row

	// Rebind turns '?' into the dialect's placeholders.
	Rebind(query string) string
	// DriverName is the name by which sqlx knows the driver: "pgx", "sqlite3", "mysql".
	DriverName() string

	// Publish adds messages to the outbox of this transaction: they leave when it commits. A *message.Message goes as it
	// is; anything else becomes the JSON payload of a new message. UUID and key are derived from this message's key and the
	// ordinal of the call unless given, so a second run sends the same ones; an ordering key is taken over from the
	// handled message unless given.
	Publish(ctx context.Context, topic string, payloads ...any) error

	// Defer queues a statement that runs before the commit, in order, and before the next statement
	// that reads. check, where not nil, gets the number of affected rows; its error fails the message.
	Defer(check func(rows int64) error, query string, args ...any)

	// AfterCommit registers what runs once the transaction has surely committed: in memory only, not promised after a crash.
	AfterCommit(func(ctx context.Context))

	// Key is the idempotency key of the handled message, Scope the binding's scope.
	Key() string
	Scope() string
}
