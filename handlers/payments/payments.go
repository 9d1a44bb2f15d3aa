package payments

import (
	"embed"
	"io/fs"
	"time"

	"github.com/oncemill/oncemill/handlers"
)

// Topics of the plugin.
const (
	TopicRequested = "payments.requested"
	TopicCompleted = "payments.completed"
	TopicDeclined  = "payments.declined"
	TopicOpened    = "accounts.opened"
)

const guarantee = `Each payment is booked exactly once for its key: balances, double-entry ledger, the row in payments and the confirmation commit together with the key. ` +
	`The ledger sums to zero at every commit and no customer's balance goes below zero; a payment without funds is declined, and that is remembered. ` +
	`Amounts are exact; a message with a bad amount or account becomes a dead letter that names the field. ` +
	`Not promised: order between payments without an ordering key.`

//go:embed migrations
var embedded embed.FS

// Plugin returns the plugin "payments" with its bindings "payments" (payments.requested) and "payments-accounts"
// (accounts.opened).
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name:       "payments",
		Migrations: migrations(),
		Retention:  30 * 24 * time.Hour,
		Guarantee:  guarantee,
		Publishes:  []string{TopicCompleted, TopicDeclined},
		Open: handlers.Open(func(cfg Config, b *handlers.Bindings) error {
			books := &books{equityPrefix: cfg.EquityPrefix}
			b.On(TopicRequested, handlers.JSON(books.pay))
			b.On(TopicOpened, handlers.JSON(books.open), handlers.Named("payments-accounts"))
			return nil
		}),
	}
}

func migrations() fs.FS {
	files, err := fs.Sub(embedded, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}

// books are the accounts and the ledger.
type books struct{ equityPrefix string }
