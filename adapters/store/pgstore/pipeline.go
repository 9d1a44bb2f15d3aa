package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// pipeline sends statements that follow each other in one round trip. It needs connections of our connector.
type pipeline struct {
	db    *sqlx.DB
	setUp func(opts keystore.TxOptions) []string
}

var _ sqlcore.Sender = (*pipeline)(nil)

// send runs the statements in one round trip, after what t has pending, and reads their answers. Without a transaction
// PostgreSQL takes them as one. A closing word, such as commit, may follow; its tag is returned.
func (c *conn) send(ctx context.Context, t *joinedTx, stmts ...*sqlcore.Stmt) error {
	_, err := c.sendAll(ctx, t, "", stmts)
	return err
}

func (c *conn) sendAll(ctx context.Context, t *joinedTx, last string, stmts []*sqlcore.Stmt) (pgconn.CommandTag, error) {
	var batch pgx.Batch
	words := 0
	if t != nil {
		words = len(t.pending)
		for _, word := range t.pending {
			batch.Queue(word)
		}
	}
	for _, s := range stmts {
		query, args := dialect{}.Bind(s)
		batch.Queue(query, args...)
	}
	if last != "" {
		batch.Queue(last)
	}
	if batch.Len() == 0 {
		return pgconn.CommandTag{}, nil
	}
	results := c.Conn.Conn().SendBatch(ctx, &batch)
	tag, err := readBatch(results, words, stmts, last != "")
	if closing := results.Close(); err == nil {
		err = closing
	}
	if t != nil && !pgconn.SafeToRetry(err) {
		t.pending = nil
	}
	return tag, err
}

func readBatch(results pgx.BatchResults, words int, stmts []*sqlcore.Stmt, last bool) (tag pgconn.CommandTag, err error) {
	for range words {
		if _, err := results.Exec(); err != nil {
			return tag, fmt.Errorf("begin: %w", err)
		}
	}
	for _, s := range stmts {
		if err := readAnswer(results, s); err != nil {
			return tag, err
		}
	}
	if last {
		tag, err = results.Exec()
	}
	return tag, err
}

func readAnswer(results pgx.BatchResults, s *sqlcore.Stmt) error {
	if s.Row == nil {
		tag, err := results.Exec()
		s.Changed, s.Ran = tag.RowsAffected(), err == nil
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := s.Row(rows.Scan); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
	}
	return rows.Err()
}

// Do implements sqlcore.Sender.
func (p *pipeline) Do(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	return p.use(ctx, func(c *conn) error { return c.send(ctx, nil, stmts...) })
}

// Read implements sqlcore.Sender.
func (p *pipeline) Read(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	return p.Do(ctx, stmts...)
}

// use lends a connection of the pool. One that turns out to be dead before anything was sent is replaced once.
func (p *pipeline) use(ctx context.Context, f func(*conn) error) error {
	for attempt := 0; ; attempt++ {
		err := p.useOnce(ctx, f)
		if attempt == 0 && err != nil && pgconn.SafeToRetry(err) && ctx.Err() == nil {
			continue
		}
		return err
	}
}

func (p *pipeline) useOnce(ctx context.Context, f func(*conn) error) error {
	borrowed, err := p.db.Conn(ctx)
	if err != nil {
		return err
	}
	err = borrowed.Raw(func(c any) error { return f(c.(*conn)) })
	_ = borrowed.Close()
	return err
}

// Begin implements sqlcore.Sender. Nothing is sent before the first statement.
func (p *pipeline) Begin(ctx context.Context, opts keystore.TxOptions) (sqlcore.Session, error) {
	borrowed, err := p.db.Connx(ctx)
	if err != nil {
		return nil, err
	}
	ctx, txOpts := isolation(joined(ctx, p.setUp(opts)...), opts)
	tx, err := borrowed.BeginTxx(ctx, txOpts)
	if err != nil {
		return nil, errors.Join(err, borrowed.Close())
	}
	s := &session{conn: borrowed, tx: tx}
	err = borrowed.Raw(func(c any) error {
		s.inner = c.(*conn).tx
		return nil
	})
	if err != nil || s.inner == nil {
		s.end()
		return nil, errors.Join(err, context.Cause(ctx))
	}
	// The transaction ends with its context; so does the loan of its connection.
	s.forget = context.AfterFunc(ctx, s.end)
	return s, nil
}

// session is one open transaction.
type session struct {
	conn   *sqlx.Conn
	tx     *sqlx.Tx
	inner  *joinedTx
	forget func() bool // for the transaction's owner: the end of its context may come while it is being set
	ended  sync.Once
}

// SQL implements sqlcore.Session.
func (s *session) SQL() *sqlx.Tx { return s.tx }

// Send implements sqlcore.Session.
func (s *session) Send(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	if len(stmts) == 0 {
		return nil
	}
	return s.raw(func(c *conn) error { return c.send(ctx, s.inner, stmts...) })
}

// raw runs f on the connection while the transaction is open: after its end the connection would take statements as well, each on its own.
func (s *session) raw(f func(*conn) error) error {
	return s.conn.Raw(func(c any) error {
		if !s.inner.open() {
			return sql.ErrTxDone
		}
		return f(c.(*conn))
	})
}

// Commit implements sqlcore.Session.
func (s *session) Commit(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	err := s.raw(func(c *conn) error {
		tag, err := c.sendAll(ctx, s.inner, "commit", stmts)
		if err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
		if err == nil || errors.Is(err, pgx.ErrTxCommitRollback) {
			c.tx = nil
		}
		return err
	})
	s.forget()
	s.end()
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone) || undone(err) {
		return err
	}
	return fmt.Errorf("%w: %w", keystore.ErrOutcomeUnknown, err)
}

// Rollback implements sqlcore.Session.
func (s *session) Rollback() error {
	s.forget()
	s.end()
	return nil
}

// end rolls back what is still open, and returns the connection to the pool. A rollback that fails costs the connection, and the server rolls back.
func (s *session) end() {
	s.ended.Do(func() {
		_ = s.tx.Rollback()
		_ = s.conn.Close()
	})
}
