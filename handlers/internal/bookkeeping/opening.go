package bookkeeping

import (
	"strings"

	"github.com/oncemill/oncemill/handlers"
)

// Kinds of accounts. Only a customer's is kept from going below zero.
const (
	KindCustomer = "customer"
	KindExternal = "external"
	KindEquity   = "equity"
)

// State is an account as it stands in the books.
type State struct {
	ID       string `db:"id"`
	Currency string `db:"currency"`
	Kind     string `db:"kind"`
	Balance  int64  `db:"balance"`
}

// Opening is a checked Opened.
type Opening struct {
	ID, Currency, Kind string
	Units              int64 // minor units
	digits             int
}

// CheckOpening returns a permanent failure, whose code is the field, for what is no account. equityPrefix begins the ids that no message
// may use.
func CheckOpening(msg Opened, equityPrefix string) (o Opening, err error) {
	o = Opening{ID: msg.AccountID, Currency: msg.Currency, Kind: msg.Kind}
	if err = requireID("account_id", o.ID); err != nil {
		return o, err
	}
	if strings.HasPrefix(o.ID, equityPrefix) {
		return o, handlers.Permanentf("account_id", "must not begin with %q", equityPrefix)
	}
	switch o.Kind {
	case "":
		o.Kind = KindCustomer
	case KindCustomer, KindExternal:
	default:
		return o, handlers.Permanent("kind", `must be "customer" or "external"`)
	}
	if o.digits, err = digitsOf(o.Currency); err != nil {
		return o, err
	}
	if msg.OpeningBalance != "" {
		o.Units, err = msg.OpeningBalance.minor("opening_balance", o.digits)
	}
	return o, err
}

// Account is the result of the message.
func (o Opening) Account() Account {
	return Account{o.ID, o.Currency, amountOf(o.Units, o.digits), o.Kind}
}
