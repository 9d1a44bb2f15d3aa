package sqlitestore

import (
	"context"
	"database/sql/driver"
	"time"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
)

// defaultWait bounds the wait for a writer's turn: with one writer, all work of the process queues there.
const defaultWait = 10 * time.Second

// connector opens connections whose writes pass the turnstile, so that also code outside of the store that begins a
// transaction on its handle takes its turn.
type connector struct {
	driver.Connector
	turns *turnstile
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{sqliteConn: inner.(sqliteConn), turns: c.turns}, nil
}

// sqliteConn is what the driver's connections implement.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type conn struct {
	sqliteConn
	turns *turnstile
	inTx  bool
}

// Unwrap gives the driver its own connection back.
func (c *conn) Unwrap() driver.Conn { return c.sqliteConn }

// BeginTx waits for the turn, unless the context brings one or the transaction only reads.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts.ReadOnly {
		return c.sqliteConn.BeginTx(ctx, opts)
	}
	leave := takenTurn(ctx)
	if leave == nil {
		var err error
		if leave, err = c.turns.enter(ctx, sqlcore.IsUrgent(ctx), defaultWait); err != nil {
			return nil, err
		}
	}
	opts.Isolation = 0 // always serializable
	inner, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil {
		leave()
		return nil, err
	}
	c.inTx = true
	return &tx{Tx: inner, conn: c, leave: leave}, nil
}

// ExecContext outside of a transaction is a transaction of its own.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.inTx {
		return c.sqliteConn.ExecContext(ctx, query, args)
	}
	leave, err := c.turns.enter(ctx, sqlcore.IsUrgent(ctx), defaultWait)
	if err != nil {
		return nil, err
	}
	defer leave()
	return c.sqliteConn.ExecContext(ctx, query, args)
}

// tx gives the turn back when it ends.
type tx struct {
	driver.Tx
	conn  *conn
	leave func()
}

func (t *tx) Commit() error   { return t.end(t.Tx.Commit) }
func (t *tx) Rollback() error { return t.end(t.Tx.Rollback) }

func (t *tx) end(how func() error) error {
	defer t.leave()
	t.conn.inTx = false
	return how()
}

type turnKey struct{}

func withTurn(ctx context.Context, leave func()) context.Context {
	return context.WithValue(ctx, turnKey{}, leave)
}

func takenTurn(ctx context.Context) func() {
	leave, _ := ctx.Value(turnKey{}).(func())
	return leave
}
