package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Keys is the store of keys. Safe for concurrent use.
type Keys struct{ *Core }

var _ keystore.Store = (*Keys)(nil)

// Classify implements keystore.Store.
func (k *Keys) Classify(err error) keystore.Fault {
	if Contended(err) {
		return keystore.FaultContention
	}
	return k.dialect.Classify(err)
}

// Capabilities implements keystore.Store.
func (k *Keys) Capabilities() keystore.Capabilities { return k.caps }

// Begin implements keystore.Transactional.
func (k *Keys) Begin(ctx context.Context, opts keystore.TxOptions) (keystore.Tx, error) {
	t, err := k.begin(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("begin a transaction: %w", err)
	}
	return t, nil
}

func (k *Keys) begin(ctx context.Context, opts keystore.TxOptions) (*tx, error) {
	switch opts.Isolation {
	case "", "read committed", "repeatable read", "serializable":
	default:
		return nil, fmt.Errorf("isolation %q is none of read committed, repeatable read, serializable", opts.Isolation)
	}
	s, err := k.sender.Begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &tx{core: k.Core, session: s, held: map[keystore.ID]held{}}, nil
}

// tx is one transaction over a group of messages.
type tx struct {
	core    *Core
	session Session
	held    map[keystore.ID]held
}

var (
	_ keystore.Tx       = (*tx)(nil)
	_ keystore.Pipeline = (*tx)(nil)
)

// SQL implements keystore.Tx.
func (t *tx) SQL() *sqlx.Tx { return t.session.SQL() }

// ExecAll implements keystore.Pipeline.
func (t *tx) ExecAll(ctx context.Context, statements []keystore.Statement) ([]int64, error) {
	stmts := make([]*Stmt, len(statements))
	for i, s := range statements {
		stmts[i] = &Stmt{Query: s.Query, Args: s.Args, Native: true}
	}
	err := t.session.Send(ctx, stmts...)
	changed := make([]int64, 0, len(stmts))
	for _, s := range stmts {
		if !s.Ran {
			break
		}
		changed = append(changed, s.Changed)
	}
	return changed, err
}

// Rollback implements keystore.Tx.
func (t *tx) Rollback() error { return t.session.Rollback() }

// Claim implements keystore.Tx.
func (t *tx) Claim(ctx context.Context, claims []keystore.Claim) ([]keystore.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	c := newClaimer(t.session, nil, claims)
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	for _, i := range c.order {
		claim, v := claims[i], c.verdicts[i]
		if claim.Token == "" && (v.Outcome == keystore.Fresh || v.Outcome == keystore.TakenOver) {
			_, inserted := c.inserted[i]
			t.held[claim.ID] = held{fresh: inserted, claim: claim, at: time.Now()}
		}
	}
	return c.verdicts, nil
}
