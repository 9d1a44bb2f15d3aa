package sqlcore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Plain sends statements one after the other through database/sql. It suits databases without a
// network in between, and is what a dialect begins with.
type Plain struct {
	Dialect Dialect
	// Writer is where transactions that write begin; Reader where others read. They may be the same.
	Writer, Reader *sqlx.DB
	// Setup runs first in each transaction. May be nil.
	Setup func(opts keystore.TxOptions) []string
	// Options turns a transaction's options into database/sql's, and its context into one that a driver of ours understands. May be nil.
	Options func(ctx context.Context, opts keystore.TxOptions) (context.Context, *sql.TxOptions)
	// Undone reports that a COMMIT that failed with err has surely not taken place.
	Undone func(err error) bool
}

var _ Sender = (*Plain)(nil)

// Do implements Sender.
func (p *Plain) Do(ctx context.Context, stmts ...*Stmt) error {
	s, err := p.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Rollback() }()
	return s.Commit(ctx, stmts...)
}

// Read implements Sender.
func (p *Plain) Read(ctx context.Context, stmts ...*Stmt) error {
	for _, s := range stmts {
		if err := p.run(ctx, p.Reader, s); err != nil {
			return err
		}
	}
	return nil
}

// Begin implements Sender.
func (p *Plain) Begin(ctx context.Context, opts keystore.TxOptions) (Session, error) {
	var txOpts *sql.TxOptions
	if p.Options != nil {
		ctx, txOpts = p.Options(ctx, opts)
	}
	tx, err := p.Writer.BeginTxx(ctx, txOpts)
	if err != nil {
		return nil, err
	}
	if p.Setup != nil {
		for _, q := range p.Setup(opts) {
			if _, err := tx.ExecContext(ctx, q); err != nil {
				_ = tx.Rollback()
				return nil, fmt.Errorf("set up the transaction: %w", err)
			}
		}
	}
	return &plainSession{p, tx}, nil
}

type plainSession struct {
	plain *Plain
	tx    *sqlx.Tx
}

func (s *plainSession) SQL() *sqlx.Tx { return s.tx }

func (s *plainSession) Send(ctx context.Context, stmts ...*Stmt) error {
	for _, stmt := range stmts {
		if err := s.plain.run(ctx, s.tx, stmt); err != nil {
			return err
		}
	}
	return nil
}

func (s *plainSession) Commit(ctx context.Context, stmts ...*Stmt) error {
	if err := s.Send(ctx, stmts...); err != nil {
		return err
	}
	if err := s.tx.Commit(); err != nil {
		if errors.Is(err, sql.ErrTxDone) || s.plain.Undone(err) {
			return err
		}
		return fmt.Errorf("%w: %w", keystore.ErrOutcomeUnknown, err)
	}
	return nil
}

func (s *plainSession) Rollback() error {
	if err := s.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// runner is what *sqlx.DB and *sqlx.Tx have in common.
type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// run runs what the dialect says in the place of s.
func (p *Plain) run(ctx context.Context, r runner, s *Stmt) error {
	said := phrases(p.Dialect, s)
	if len(said) == 1 && said[0] == s {
		return p.runOne(ctx, r, s)
	}
	for _, phrase := range said {
		if err := p.runOne(ctx, r, phrase); err != nil {
			return err
		}
		s.Changed += phrase.Changed
	}
	s.Ran = true
	return nil
}

func (p *Plain) runOne(ctx context.Context, r runner, s *Stmt) error {
	query, args := p.Dialect.Bind(s)
	if s.Row == nil {
		res, err := r.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		s.Changed, err = res.RowsAffected()
		s.Ran = err == nil
		return err
	}
	rows, err := r.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := s.Row(rows.Scan); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
	}
	return rows.Err()
}
