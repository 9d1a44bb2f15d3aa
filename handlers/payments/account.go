package payments

import (
	"context"
	"fmt"
	"math"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
)

// open handles accounts.opened.
func (b *books) open(ctx context.Context, tx handlers.Tx, msg Opened) (any, error) {
	o, err := bookkeeping.CheckOpening(msg, b.equityPrefix)
	if err != nil {
		return nil, err
	}
	inserted, err := insertAccount(ctx, tx, o)
	if err != nil {
		return nil, err
	}
	if !inserted {
		err = sameAccount(ctx, tx, o)
	} else if o.Units > 0 {
		err = b.bookOpening(ctx, tx, o)
	}
	if err != nil {
		return nil, err
	}
	return o.Account(), nil
}

func insertAccount(ctx context.Context, tx handlers.Tx, o bookkeeping.Opening) (bool, error) {
	result, err := tx.ExecContext(ctx, handlers.InsertNew(tx, `INSERT INTO accounts (id, currency, kind, balance, opening_balance, scope, idempotency_key)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, "id"), o.ID, o.Currency, o.Kind, o.Units, o.Units, tx.Scope(), tx.Key())
	if err != nil {
		return false, fmt.Errorf("insert account: %w", err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// sameAccount passes where the account that is there was opened by this very message, whose key has expired since.
func sameAccount(ctx context.Context, tx handlers.Tx, o bookkeeping.Opening) error {
	var first struct {
		Currency string `db:"currency"`
		Kind     string `db:"kind"`
		Opening  int64  `db:"opening_balance"`
		Scope    string `db:"scope"`
		Key      string `db:"idempotency_key"`
	}
	err := sqlx.GetContext(ctx, tx, &first, tx.Rebind(
		`SELECT currency, kind, opening_balance, scope, idempotency_key FROM accounts WHERE id = ?`), o.ID)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	if first.Scope != tx.Scope() || first.Key != tx.Key() ||
		first.Currency != o.Currency || first.Kind != o.Kind || first.Opening != o.Units {
		return handlers.Permanentf("account-id-taken", "account_id was opened by the message with key %q", first.Key)
	}
	return nil
}

// bookOpening takes the opening balance from the currency's equity account.
func (b *books) bookOpening(ctx context.Context, tx handlers.Tx, o bookkeeping.Opening) error {
	equity := b.equityPrefix + o.Currency
	tx.Defer(nil, handlers.Ensure(tx, `INSERT INTO accounts (id, currency, kind, balance, opening_balance, scope, idempotency_key)
		VALUES (?, ?, ?, 0, 0, ?, ?)`, "id"), equity, o.Currency, bookkeeping.KindEquity, tx.Scope(), tx.Key())
	tx.Defer(func(rows int64) error {
		if rows == 1 {
			return nil
		}
		return handlers.Permanent("opening_balance", "the equity account of this currency cannot take so much")
	}, tx.Rebind(`UPDATE accounts SET balance = balance - ? WHERE id = ? AND kind = ? AND balance >= ?`),
		o.Units, equity, bookkeeping.KindEquity, math.MinInt64+o.Units)
	tx.Defer(wantRows(2), tx.Rebind(`INSERT INTO ledger_entries (opening_of, account, amount, currency)
		VALUES (?, ?, ?, ?), (?, ?, ?, ?)`),
		o.ID, equity, -o.Units, o.Currency, o.ID, o.ID, o.Units, o.Currency)
	return nil
}

// wantRows is the check of a deferred statement that must change so many rows.
func wantRows(want int64) func(int64) error {
	return func(rows int64) error {
		if rows != want {
			return fmt.Errorf("a statement of the ledger changed %d rows, not %d", rows, want)
		}
		return nil
	}
}
