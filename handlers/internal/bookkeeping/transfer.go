package bookkeeping

import (
	"math"

	"github.com/oncemill/oncemill/handlers"
)

// Transfer is a checked Requested.
type Transfer struct {
	Requested
	Units  int64 // minor units
	digits int
}

// CheckTransfer returns a permanent failure, whose code is the field, for what is no payment.
func CheckTransfer(msg Requested) (t Transfer, err error) {
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
	t.Units, err = msg.Amount.positive("amount", t.digits)
	return t, err
}

// Outcome is what the transfer's confirmation says.
func (t Transfer) Outcome(reason string) Outcome {
	o := Outcome{t.PaymentID, Completed, t.From, t.To, amountOf(t.Units, t.digits), t.Currency, reason}
	if reason != "" {
		o.Status = Declined
	}
	return o
}

// Usable returns a permanent failure for an account that cannot take part. One without an ID is one that is not there.
func Usable(field string, a State, currency string) error {
	switch {
	case a.ID == "":
		return handlers.Permanent(field, "there is no such account")
	case a.Kind == KindEquity:
		return handlers.Permanent(field, "is an equity account, which payments cannot use")
	case a.Currency != currency:
		return handlers.Permanentf("currency", "the account of %q is kept in %s", field, a.Currency)
	}
	return nil
}

// Decide returns why the payment is declined, "" where it is not, and a permanent failure where a balance would leave the range of 64 bits.
func Decide(from, to State, units int64) (reason string, err error) {
	if from.Kind == KindCustomer && from.Balance < units {
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
