package payments

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
)

// Kinds of accounts. Only a customer's is kept from going below zero.
const (
	kindCustomer = "customer"
	kindExternal = "external"
	kindEquity   = "equity"
)

// accountRow is a row of accounts; its key is that of the message that opened it.
type accountRow struct {
	ID       string `db:"id"`
	Currency string `db:"currency"`
	Kind     string `db:"kind"`
	Balance  int64  `db:"balance"`
}

// opening is a checked Opened.
type opening struct {
	id, currency, kind string
	units              int64
	digits             int
}

// open handles accounts.opened.
func (b *books) open(ctx context.Context, tx handlers.Tx, msg Opened) (any, error) {
	o, err := b.checkOpening(msg)
	if err != nil {
		return nil, err
	}
	inserted, err := insertAccount(ctx, tx, o)
	if err != nil {
		return nil, err
	}
	if !inserted {
		err = sameAccount(ctx, tx, o)
	} else if o.units > 0 {
		err = b.bookOpening(ctx, tx, o)
	}
	if err != nil {
		return nil, err
	}
	return Account{o.id, o.currency, amountOf(o.units, o.digits), o.kind}, nil
}

func (b *books) checkOpening(msg Opened) (o opening, err error) {
	o = opening{id: msg.AccountID, currency: msg.Currency, kind: msg.Kind}
	if err = requireID("account_id", o.id); err != nil {
		return o, err
	}
	if strings.HasPrefix(o.id, b.equityPrefix) {
		return o, handlers.Permanentf("account_id", "must not begin with %q", b.equityPrefix)
	}
	switch o.kind {
	case "":
		o.kind = kindCustomer
	case kindCustomer, kindExternal:
	default:
		return o, handlers.Permanent("kind", `must be "customer" or "external"`)
	}
	if o.digits, err = digitsOf(o.currency); err != nil {
		return o, err
	}
	if msg.OpeningBalance != "" {
		o.units, err = msg.OpeningBalance.minor("opening_balance", o.digits)
	}
	return o, err
}

func insertAccount(ctx context.Context, tx handlers.Tx, o opening) (bool, error) {
	result, err := tx.ExecContext(ctx, handlers.InsertNew(tx, `INSERT INTO accounts (id, currency, kind, balance, opening_balance, scope, idempotency_key)
		VALUES (?, ?, ?, ?, ?, ?, ?)`, "id"), o.id, o.currency, o.kind, o.units, o.units, tx.Scope(), tx.Key())
	if err != nil {
		return false, fmt.Errorf("insert account: %w", err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// sameAccount passes where the account that is there was opened by this very message, whose key has expired since.
func sameAccount(ctx context.Context, tx handlers.Tx, o opening) error {
	var first struct {
		Currency string `db:"currency"`
		Kind     string `db:"kind"`
		Opening  int64  `db:"opening_balance"`
		Scope    string `db:"scope"`
		Key      string `db:"idempotency_key"`
	}
	err := sqlx.GetContext(ctx, tx, &first, tx.Rebind(
		`SELECT currency, kind, opening_balance, scope, idempotency_key FROM accounts WHERE id = ?`), o.id)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	if first.Scope != tx.Scope() || first.Key != tx.Key() ||
		first.Currency != o.currency || first.Kind != o.kind || first.Opening != o.units {
		return handlers.Permanentf("account-id-taken", "account_id was opened by the message with key %q", first.Key)
	}
	return nil
}

// bookOpening takes the opening balance from the currency's equity account.
func (b *books) bookOpening(ctx context.Context, tx handlers.Tx, o opening) error {
	equity := b.equityPrefix + o.currency
	tx.Defer(nil, handlers.Ensure(tx, `INSERT INTO accounts (id, currency, kind, balance, opening_balance, scope, idempotency_key)
		VALUES (?, ?, ?, 0, 0, ?, ?)`, "id"), equity, o.currency, kindEquity, tx.Scope(), tx.Key())
	tx.Defer(func(rows int64) error {
		if rows == 1 {
			return nil
		}
		return handlers.Permanent("opening_balance", "the equity account of this currency cannot take so much")
	}, tx.Rebind(`UPDATE accounts SET balance = balance - ? WHERE id = ? AND kind = ? AND balance >= ?`),
		o.units, equity, kindEquity, math.MinInt64+o.units)
	tx.Defer(wantRows(2), tx.Rebind(`INSERT INTO ledger_entries (opening_of, account, amount, currency)
		VALUES (?, ?, ?, ?), (?, ?, ?, ?)`),
		o.id, equity, -o.units, o.currency, o.id, o.id, o.units, o.currency)
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
