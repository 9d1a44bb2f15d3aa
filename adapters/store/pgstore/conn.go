package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector opens connections on which a transaction of the store begins together with its first statements, and commits together with its
// last: two round trips less than database/sql takes. Other transactions are as ever.
type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner.(*stdlib.Conn)}, nil
}

// conn is used by one goroutine at a time, as database/sql promises.
type conn struct {
	*stdlib.Conn
	tx *joinedTx // the store's transaction that is open here
}

// rollbackWait bounds a ROLLBACK; when it fails the connection is given up, and the server rolls back.
const rollbackWait = 5 * time.Second

// joinedTx is a transaction that begins with its first statement.
type joinedTx struct {
	conn    *conn
	pending []string // BEGIN and what follows it, while they have not been sent
}

type joinKey struct{}

// joined asks BeginTx for a transaction that begins with its first statement, with setup right after BEGIN.
func joined(ctx context.Context, setup ...string) context.Context {
	return context.WithValue(ctx, joinKey{}, setup)
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	setup, ok := ctx.Value(joinKey{}).([]string)
	if !ok {
		return c.Conn.BeginTx(ctx, opts)
	}
	if c.Conn.Conn().IsClosed() {
		return nil, driver.ErrBadConn
	}
	begin := "begin"
	switch sql.IsolationLevel(opts.Isolation) {
	case sql.LevelRepeatableRead:
		begin = "begin isolation level repeatable read"
	case sql.LevelSerializable:
		begin = "begin isolation level serializable"
	case sql.LevelReadCommitted:
		begin = "begin isolation level read committed"
	}
	c.tx = &joinedTx{conn: c, pending: append([]string{begin}, setup...)}
	return c.tx, nil
}

// start sends what is pending before a statement that comes through database/sql.
func (c *conn) start(ctx context.Context) error {
	if c.tx == nil || c.tx.pending == nil {
		return nil
	}
	return c.send(ctx, c.tx)
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return c.Conn.ExecContext(ctx, query, args)
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return c.Conn.QueryContext(ctx, query, args)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return c.Conn.PrepareContext(ctx, query)
}

// Commit implements driver.Tx, for a transaction that no pipeline has committed.
func (t *joinedTx) Commit() error {
	if !t.open() {
		return nil
	}
	t.conn.tx = nil
	if t.pending != nil {
		return nil
	}
	tag, err := t.conn.Conn.Conn().Exec(context.Background(), "commit")
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback implements driver.Tx. It does nothing once the transaction has ended.
func (t *joinedTx) Rollback() error {
	if !t.open() {
		return nil
	}
	t.conn.tx = nil
	if t.pending != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackWait)
	defer cancel()
	pg := t.conn.Conn.Conn()
	if _, err := pg.Exec(ctx, "rollback"); err != nil {
		_ = pg.Close(ctx)
		return err
	}
	return nil
}

func (t *joinedTx) open() bool { return t.conn.tx == t }
