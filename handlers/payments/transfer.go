package payments

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
)

// pay handles payments.requested.
func (b *books) pay(ctx context.Context, tx handlers.Tx, msg Requested) (any, error) {
	t, err := bookkeeping.CheckTransfer(msg)
	if err != nil {
		return nil, err
	}
	from, to, err := lockAccounts(ctx, tx, t)
	if err != nil {
		return nil, err
	}
	reason, err := bookkeeping.Decide(from, to, t.Units)
	if err != nil {
		return nil, err
	}
	outcome := t.Outcome(reason)
	inserted, err := insertPayment(ctx, tx, t.Units, outcome)
	if err != nil {
		return nil, err
	}
	if !inserted {
		return recorded(ctx, tx, t)
	}
	if outcome.Status == Declined {
		return outcome, tx.Publish(ctx, TopicDeclined, outcome)
	}
	book(tx, t)
	return outcome, tx.Publish(ctx, TopicCompleted, outcome)
}

// lockAccounts reads both accounts and holds them until the end of the transaction, in the order of their ids: two payments in
// opposite directions wait for each other instead of deadlocking. SQLite has one writer and needs no row locks.
func lockAccounts(ctx context.Context, tx handlers.Tx, t bookkeeping.Transfer) (from, to bookkeeping.State, err error) {
	query := `SELECT id, currency, kind, balance FROM accounts WHERE id IN (?, ?) ORDER BY id`
	if !strings.HasPrefix(tx.DriverName(), "sqlite") {
		query += ` FOR UPDATE`
	}
	var rows []bookkeeping.State
	if err := sqlx.SelectContext(ctx, tx, &rows, tx.Rebind(query), t.From, t.To); err != nil {
		return from, to, fmt.Errorf("lock accounts: %w", err)
	}
	for _, row := range rows {
		if row.ID == t.From {
			from = row
		} else {
			to = row
		}
	}
	if err := bookkeeping.Usable("from", from, t.Currency); err != nil {
		return from, to, err
	}
	return from, to, bookkeeping.Usable("to", to, t.Currency)
}
