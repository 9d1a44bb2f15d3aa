package mysqlstore

import (
	"context"
	"database/sql"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// sender sends statements one after the other.
type sender struct {
	sqlcore.Plain
	cfg Config
}

var _ sqlcore.Sender = (*sender)(nil)

func newSender(db *sqlx.DB, c Config) *sender {
	return &sender{cfg: c, Plain: sqlcore.Plain{Dialect: c.dialect(), Writer: db, Reader: db, Options: isolation, Undone: undone}}
}

// Begin implements sqlcore.Sender.
func (s *sender) Begin(ctx context.Context, opts keystore.TxOptions) (sqlcore.Session, error) {
	asked := &terms{lockWait: opts.LockTimeout}
	if asked.lockWait <= 0 {
		asked.lockWait = s.cfg.lockWait()
	}
	inner, err := s.Plain.Begin(context.WithValue(ctx, termsKey{}, asked), opts)
	if err != nil {
		return nil, err
	}
	return &session{inner, asked}, nil
}

// Do implements sqlcore.Sender.
func (s *sender) Do(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	if len(stmts) == 1 && alone(stmts[0]) {
		return s.Read(ctx, stmts...) // it is a transaction of its own
	}
	tx, err := s.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	return tx.Commit(ctx, stmts...)
}

// alone reports that a statement stays one.
func alone(s *sqlcore.Stmt) bool {
	said := sqlcore.ForMySQL(s)
	return len(said) == 1 && said[0].Row == nil
}

// session is one open transaction whose COMMIT has a context.
type session struct {
	sqlcore.Session
	terms *terms
}

// Commit implements sqlcore.Session.
func (s *session) Commit(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	s.terms.commit.Store(&ctx)
	return s.Session.Commit(ctx, stmts...)
}

func isolation(ctx context.Context, opts keystore.TxOptions) (context.Context, *sql.TxOptions) {
	switch opts.Isolation {
	case "repeatable read":
		return ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
	case "serializable":
		return ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
	return ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}
