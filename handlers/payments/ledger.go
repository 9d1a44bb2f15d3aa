package payments

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
)

// insertPayment reports false where the payment_id is taken. It does not fail then: on PostgreSQL a
// unique violation would abort the transaction and leave nobody to say whose the id is.
func insertPayment(ctx context.Context, tx handlers.Tx, units int64, o Outcome) (bool, error) {
	result, err := tx.ExecContext(ctx, handlers.InsertNew(tx, `INSERT INTO payments
		(payment_id, scope, idempotency_key, from_account, to_account, amount, currency, status, reason)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, "payment_id"),
		o.PaymentID, tx.Scope(), tx.Key(), o.From, o.To, units, o.Currency, string(o.Status), o.Reason)
	if err != nil {
		return false, fmt.Errorf("insert payment: %w", err)
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}

// recorded returns the outcome of the payment that has this id already, where it is this very message's, whose key has expired since.
func recorded(ctx context.Context, tx handlers.Tx, t bookkeeping.Transfer) (any, error) {
	var first struct {
		Scope    string `db:"scope"`
		Key      string `db:"idempotency_key"`
		From     string `db:"from_account"`
		To       string `db:"to_account"`
		Units    int64  `db:"amount"`
		Currency string `db:"currency"`
		Reason   string `db:"reason"`
	}
	// A new statement: its snapshot has the rival's row that the insert waited for.
	err := sqlx.GetContext(ctx, tx, &first, tx.Rebind(`SELECT scope, idempotency_key, from_account, to_account, amount, currency, reason
		FROM payments WHERE payment_id = ?`), t.PaymentID)
	if err != nil {
		return nil, fmt.Errorf("read payment: %w", err)
	}
	if first.Scope != tx.Scope() || first.Key != tx.Key() ||
		first.From != t.From || first.To != t.To || first.Units != t.Units || first.Currency != t.Currency {
		return nil, handlers.Permanentf("payment-id-taken", "payment_id was used by the message with key %q", first.Key)
	}
	return t.Outcome(first.Reason), nil
}

// book moves the money. The accounts are locked and the sums checked, so the statements can wait for the next round trip.
func book(tx handlers.Tx, t bookkeeping.Transfer) {
	update := tx.Rebind(`UPDATE accounts SET balance = balance + ? WHERE id = ?`)
	tx.Defer(wantRows(1), update, -t.Units, t.From)
	tx.Defer(wantRows(1), update, t.Units, t.To)
	tx.Defer(wantRows(2), tx.Rebind(`INSERT INTO ledger_entries (payment_id, account, amount, currency)
		VALUES (?, ?, ?, ?), (?, ?, ?, ?)`),
		t.PaymentID, t.From, -t.Units, t.Currency, t.PaymentID, t.To, t.Units, t.Currency)
}
