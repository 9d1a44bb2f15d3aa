package payments

import "github.com/oncemill/oncemill/handlers/internal/bookkeeping"

// Requested asks for a payment. All fields are needed.
type Requested = bookkeeping.Requested

// Opened asks for a new account.
type Opened = bookkeeping.Opened

// Amount is a decimal amount as it was written, such as "78.43". It is checked where it is used, together with its currency.
type Amount = bookkeeping.Amount

// Outcome is the result of a payment: what is kept with the key and what is published on payments.completed or payments.declined.
type Outcome = bookkeeping.Outcome

// Account is the result of accounts.opened.
type Account = bookkeeping.Account

// Status says how a payment ended.
type Status = bookkeeping.Status

// Statuses of payments.
const (
	Completed = bookkeeping.Completed
	Declined  = bookkeeping.Declined
)
