package proof

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Topics of the built-in plugins. Neither plugins nor their types are imported: an application that has others links none of them.
const (
	topicRequested = "payments.requested"
	topicCompleted = "payments.completed"
	topicDeclined  = "payments.declined"
	topicOpened    = "accounts.opened"
	topicLetter    = "email.requested"
	topicSent      = "email.sent"
	topicAdd       = "counters.add"
	topicAppend    = "journal.append"
)

// statusCompleted is the status of a payment that moved money; the other one is declined.
const statusCompleted = "completed"

// fields are the body of a message.
type fields map[string]any

// Builtin is the cast of the plugins that ship.
func Builtin() Cast { return builtin{} }

type builtin struct{}

// Bindings implements Cast.
func (builtin) Bindings() []history.Binding {
	return []history.Binding{
		{Name: "payments", Topic: topicRequested, Effects: map[string]int64{effectPayment: 1}},
		{Name: "payments-accounts", Topic: topicOpened, Effects: map[string]int64{effectAccount: 1}},
		{Name: "email", Topic: topicCompleted, Effects: map[string]int64{effectLetter: 1}, External: true, Letters: true},
		{Name: "email-requested", Topic: topicLetter, Effects: map[string]int64{effectLetter: 1}, External: true, Letters: true},
		{Name: "counters", Topic: topicCompleted, Effects: map[string]int64{effectCount: int64(len(CountedPerPayment))}},
		{Name: "counters-add", Topic: topicAdd, Effects: map[string]int64{effectCount: 1}},
		{Name: "journal", Topic: topicCompleted, Effects: map[string]int64{effectEntry: 1}},
		{Name: "journal-declined", Topic: topicDeclined, Effects: map[string]int64{effectEntry: 1}},
		{Name: "journal-append", Topic: topicAppend, Effects: map[string]int64{effectEntry: 1}},
	}
}

// CountedPerPayment are the counters that each completed payment of a trial adds one to.
var CountedPerPayment = []string{"payments.completed", "payments.completed:{currency}:{from}"}

// Topics implements Cast.
func (b builtin) Topics() []string { return topicsOf(b.Bindings(), topicSent) }

// Plugins implements Cast.
func (builtin) Plugins() []string { return []string{"payments", "email", "counters", "journal"} }

func (builtin) cues() []string {
	return []string{"payments", "payments", "payments", "journal-declined", "payments-accounts", "email-requested", "counters-add", "journal-append"}
}

const (
	customers = 16
	poor      = "poor" // an account that can pay nothing worth while
	currency  = "EUR"
)

func customer(n int) string { return fmt.Sprintf("customer-%02d", n%customers) }

func account(id, balance string) fields {
	return fields{"account_id": id, "currency": currency, "opening_balance": balance}
}

func (b builtin) cue(binding string, n int, scope func(string) string) cue {
	c := cue{key: keyOf(binding, n)}
	c.target = c.key
	for _, own := range b.Bindings() {
		if own.Name == binding {
			c.topic = own.Topic
		}
	}
	pay := func(from, amount string) {
		c.topic = topicRequested
		c.body = fields{"payment_id": "pay-" + c.key, "from": from, "to": customer(n*7 + 3), "amount": amount, "currency": currency}
		if binding != "payments" {
			c.target = envelope.DeriveKey(scope("payments"), c.key, 0)
		}
	}
	from := customer(n*7 + 3 + 1 + n%(customers-1))
	amount := fmt.Sprintf("%d.%02d", 1+n%9, n%100)
	switch binding {
	case "payments", "email", "counters", "journal":
		pay(from, amount)
	case "journal-declined":
		pay(poor, "1000.00")
	case "payments-accounts":
		c.body = account("new-"+c.key, "10.00")
	case "email-requested":
		c.body = fields{"to": "reader@example.org", "subject": "Letter " + c.key, "text": "A letter of the trial."}
	case "counters-add":
		c.body = fields{"counter": fmt.Sprintf("counter-%d", n%5), "delta": 1 + n%9}
	default:
		c.body = fields{"entry": n}
	}
	return c
}

func (builtin) opening() []cue {
	open := func(id, balance string) cue {
		return cue{topic: topicOpened, key: "open-" + id, body: account(id, balance)}
	}
	cues := []cue{open(poor, "1.00")}
	for n := range customers {
		cues = append(cues, open(customer(n), "100000000.00"))
	}
	return cues
}

// check has nothing to add: the readings say all.
func (builtin) check(context.Context, *sqlx.DB, []cue, func(string, string) bool) []history.Event {
	return nil
}
