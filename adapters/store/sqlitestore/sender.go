package sqlitestore

import (
	"context"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// sender waits for the turn before it takes the writing connection, so that who waits holds nothing.
type sender struct {
	sqlcore.Plain
	turns *turnstile
}

func (s *sender) Begin(ctx context.Context, opts keystore.TxOptions) (sqlcore.Session, error) {
	wait := opts.LockTimeout
	if wait <= 0 {
		wait = defaultWait
	}
	leave, err := s.turns.enter(ctx, sqlcore.IsUrgent(ctx), wait)
	if err != nil {
		return nil, err
	}
	session, err := s.Plain.Begin(withTurn(ctx, leave), keystore.TxOptions{})
	if err != nil {
		leave()
		return nil, err
	}
	return session, nil
}

func (s *sender) Do(ctx context.Context, stmts ...*sqlcore.Stmt) error {
	session, err := s.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = session.Rollback() }()
	return session.Commit(ctx, stmts...)
}
