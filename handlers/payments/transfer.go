package payments

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/handlers"
)

// transfer is a checked Requested.
type transfer struct {
	Requested
	units  int64
	digits int
}

func checkTransfer(msg Requested) (t transfer, err error) {
	t.Requested = msg
	for _, id := range []struct{ field, value string }{
		{"payment_id", msg.PaymentID}, {"from", msg.From}, {"to", msg.To},
	} {
		if err = requireID(id.field, id.value); err != nil {
			return t, err
		}
	}
	if msg.From == msg.To {
		return t, handlers.Permanent("to", "is the same account as from")
	}
	if t.digits, err = digitsOf(msg.Currency); err != nil {
		return t, err
	}
	t.units, err = msg.Amount.positive("amount", t.digits)
	return t, err
}

// outcome is what the transfer's confirmation says.
func (t transfer) outcome(reason string) Outcome {
	o := Outcome{t.PaymentID, Completed, t.From, t.To, amountOf(t.units, t.digits), t.Currency, reason}
	if reason != "" {
		o.Status = Declined
	}
	return o
}

// pay handles payments.requested.
func (b *books) pay(ctx context.Context, tx handlers.Tx, msg Requested) (any, error) {
	t, err := checkTransfer(msg)
	if err != nil {
		return nil, err
	}
	from, to, err := lockAccounts(ctx, tx, t)
	if err != nil {
		return nil, err
	}
	reason, err := decide(from, to, t.units)
	if err != nil {
		return nil, err
	}
	outcome := t.outcome(reason)
	inserted, err := insertPayment(ctx, tx, t.units, outcome)
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
func lockAccounts(ctx context.Context, tx handlers.Tx, t transfer) (from, to accountRow, err error) {
	query := `SELECT id, currency, kind, balance FROM accounts WHERE id IN (?, ?) ORDER BY id`
	if !strings.HasPrefix(tx.DriverName(), "sqlite") {
		query += ` FOR UPDATE`
	}
	var rows []accountRow
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
	if err := usable("from", from, t.Currency); err != nil {
		return from, to, err
	}
	return from, to, usable("to", to, t.Currency)
}

func usable(field string, a accountRow, currency string) error {
	switch {
	case a.ID == "":
		return handlers.Permanent(field, "there is no such account")
	case a.Kind == kindEquity:
		return handlers.Permanent(field, "is an equity account, which payments cannot use")
	case a.Currency != currency:
		return handlers.Permanentf("currency", "the account of %q is kept in %s", field, a.Currency)
	}
	return nil
}

// decide returns why the payment is declined, "" where it is not, and a permanent failure where a balance would leave the range of 64 bits.
func decide(from, to accountRow, units int64) (reason string, err error) {
	if from.Kind == kindCustomer && from.Balance < units {
		return "insufficient-funds", nil
	}
	if from.Balance < math.MinInt64+units {
		return "", handlers.Permanent("amount", "the balance of the paying account would overflow")
	}
	if to.Balance > math.MaxInt64-units {
		return "", handlers.Permanent("amount", "the balance of the receiving account would overflow")
	}
	return "", nil
}
