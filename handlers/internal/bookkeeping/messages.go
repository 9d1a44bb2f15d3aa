// Package bookkeeping is what payments are made of wherever their books are kept: the messages, the checks that they have to pass, and the
// decision about a payment.
package bookkeeping

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/oncemill/oncemill/handlers"
)

// Requested asks for a payment. All fields are needed.
type Requested struct {
	PaymentID string `json:"payment_id"` // unique for ever
	From      string `json:"from"`       // the account that is debited
	To        string `json:"to"`         // the account that is credited
	Amount    Amount `json:"amount"`
	Currency  string `json:"currency"` // ISO 4217, that of both accounts
}

// Opened asks for a new account.
type Opened struct {
	AccountID string `json:"account_id"`
	Currency  string `json:"currency"` // ISO 4217
	// OpeningBalance may be zero or missing.
	OpeningBalance Amount `json:"opening_balance,omitempty"`
	// Kind is "customer" (also where it is missing) or "external": an account of the outside world, which may go below zero.
	Kind string `json:"kind,omitempty"`
}

// Status says how a payment ended.
type Status string

// Statuses of payments.
const (
	Completed Status = "completed"
	Declined  Status = "declined"
)

// Outcome is the result of a payment: what is kept with the key and what is published on payments.completed or payments.declined.
type Outcome struct {
	PaymentID string `json:"payment_id"`
	Status    Status `json:"status"`
	From      string `json:"from"`
	To        string `json:"to"`
	Amount    Amount `json:"amount"` // with all fraction digits of the currency
	Currency  string `json:"currency"`
	// Reason of a declined payment, such as "insufficient-funds".
	Reason string `json:"reason,omitempty"`
}

// Account is the result of accounts.opened.
type Account struct {
	AccountID      string `json:"account_id"`
	Currency       string `json:"currency"`
	OpeningBalance Amount `json:"opening_balance"`
	Kind           string `json:"kind"`
}

const maxID = 255 // bytes

// requireID refuses what cannot be an id, naming the field.
func requireID(field, id string) error {
	if problem := CheckID(id); problem != "" {
		return handlers.Permanent(field, problem)
	}
	return nil
}

// CheckID says what is wrong with an id. JSON's decoder puts U+FFFD for bytes that are not UTF-8, so two different broken ids
// would become one: that character is refused.
func CheckID(id string) string {
	switch {
	case id == "":
		return "is missing"
	case len(id) > maxID:
		return "is longer than 255 bytes"
	case !utf8.ValidString(id), strings.ContainsRune(id, utf8.RuneError):
		return "is not valid UTF-8"
	case strings.ContainsFunc(id, unicode.IsControl):
		return "has control characters"
	}
	return ""
}
