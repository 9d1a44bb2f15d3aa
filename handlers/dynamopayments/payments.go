package dynamopayments

import (
	"time"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
)

// Topics of the plugin.
const (
	TopicRequested = "payments.requested"
	TopicCompleted = "payments.completed"
	TopicDeclined  = "payments.declined"
	TopicOpened    = "accounts.opened"
)

// Tables, and the attributes of their items.
const (
	tableAccounts = "accounts"
	tablePayments = "payments"
	tableLedger   = "ledger"

	attrAccountID = "account_id"      // S
	attrKind      = "kind"            // S
	attrBalance   = "balance"         // N: minor units, as all amounts
	attrOpening   = "opening_balance" // N

	attrPaymentID = "payment_id" // S
	attrFrom      = "from"       // S
	attrTo        = "to"         // S
	attrStatus    = "status"     // S
	attrReason    = "reason"     // S, of declined payments

	attrEntry    = "entry"    // S: what the entry is of
	attrAmount   = "amount"   // N
	attrCurrency = "currency" // S
	attrKey      = "key"      // S: that of the message that made the item
)

const guarantee = `Payments with their books in DynamoDB: each payment is booked exactly once for its key: balances, double-entry ledger, payment, confirmation and key commit in one TransactWriteItems; a relay publishes the confirmation from there, also where the process died and the message never comes again. ` +
	`The ledger sums to zero at every commit and no customer's balance goes below zero; a payment without funds is declined, and that is remembered. ` +
	`Amounts are exact; a message with a bad amount or account becomes a dead letter that names the field. ` +
	`Off unless plugins.payments-dynamodb.enabled is set. Not promised: order between payments without an ordering key.`

// Plugin returns the plugin "payments-dynamodb" with its bindings "payments-dynamodb" (payments.requested) and
// "payments-dynamodb-accounts" (accounts.opened). It has to be enabled.
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name: "payments-dynamodb", OptIn: true, Replaces: "payments",
		Retention: 30 * 24 * time.Hour,
		Guarantee: guarantee,
		Publishes: []string{TopicCompleted, TopicDeclined},
		Open: handlers.Open(func(cfg Config, b *handlers.Bindings) error {
			db := dynamotx.New(cfg.DynamoDB,
				dynamotx.Table{Name: tableAccounts, Partition: attrAccountID},
				dynamotx.Table{Name: tablePayments, Partition: attrPaymentID},
				dynamotx.Table{Name: tableLedger, Partition: attrAccountID, Sort: attrEntry})
			books := &books{db: db, equityPrefix: cfg.EquityPrefix}
			b.OnExternal(TopicRequested, dynamotx.Handler{DB: db, Plan: dynamotx.JSON(books.pay), MaxPayload: b.MaxPayload}.External())
			b.OnExternal(TopicOpened, dynamotx.Handler{DB: db, Plan: dynamotx.JSON(books.open), MaxPayload: b.MaxPayload}.External(), handlers.Named("payments-dynamodb-accounts"))
			return nil
		}),
	}
}

// books are the accounts and the ledger.
type books struct {
	db           *dynamotx.DB
	equityPrefix string
}
