package proof

import (
	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// readings are the rows and the books of the built-in plugins.
func (builtin) readings() []reading { return append(effects(), sums()...) }

// Names of effects in a history.
const (
	effectPayment = "payment"
	effectAccount = "account"
	effectLetter  = "row of a letter"
	effectCount   = "counted events"
	effectEntry   = "journal entry"
)

// effects are the rows of the plugins.
func effects() []reading {
	effect := func(what string) func([]string, []int64) history.Event {
		return func(row []string, n []int64) history.Event {
			return history.Event{Kind: history.Effect, Scope: row[0], Key: row[1], What: what, Count: n[0]}
		}
	}
	return []reading{
		{`SELECT scope, idempotency_key, max(status), '', '', '', count(*), 0 FROM payments GROUP BY scope, idempotency_key`,
			func(row []string, n []int64) history.Event {
				e := effect(effectPayment)(row, n)
				topic := topicDeclined
				if row[2] == statusCompleted {
					topic = topicCompleted
				}
				e.Outputs = []history.Output{{Topic: topic, Key: envelope.DeriveKey(e.Scope, e.Key, 0), UUID: envelope.DeriveUUID(e.Scope, e.Key, 0)}}
				return e
			}},
		{`SELECT scope, idempotency_key, '', '', '', '', count(*), 0 FROM accounts WHERE kind <> 'equity' GROUP BY scope, idempotency_key`, effect(effectAccount)},
		{`SELECT scope, idempotency_key, '', '', '', '', count(*), 0 FROM letters GROUP BY scope, idempotency_key`, effect(effectLetter)},
		{`SELECT scope, idempotency_key, '', '', '', '', count(*), 0 FROM counter_events GROUP BY scope, idempotency_key`, effect(effectCount)},
		{`SELECT scope, idempotency_key, '', '', '', '', count(*), 0 FROM journal_entries GROUP BY scope, idempotency_key`, effect(effectEntry)},
	}
}

// sums are the books: totals, and every account, payment or counter that does not agree with its entries.
func sums() []reading {
	sum := func(what string) func([]string, []int64) history.Event {
		return func(row []string, n []int64) history.Event {
			return history.Event{Kind: history.Sum, Scope: row[0], Key: row[1], What: what + row[2], Count: n[0], Want: n[1]}
		}
	}
	return []reading{
		{`SELECT '', '', currency, '', '', '', sum(amount), 0 FROM ledger_entries GROUP BY currency`, sum("the sum of the ledger in ")},
		{`SELECT scope, idempotency_key, id, '', '', '', balance, entries FROM (SELECT a.scope, a.idempotency_key, a.id, a.balance,
			(SELECT coalesce(sum(amount), 0) FROM ledger_entries l WHERE l.account = a.id) AS entries FROM accounts a) AS books WHERE balance <> entries`,
			sum("against its entries, the balance of account ")},
		{`SELECT scope, idempotency_key, payment_id, '', '', '', entries, CASE WHEN status = 'completed' THEN 2 ELSE 0 END FROM (SELECT p.scope, p.idempotency_key, p.payment_id, p.status,
			(SELECT count(*) FROM ledger_entries l WHERE l.payment_id = p.payment_id) AS entries FROM payments p) AS booked
			WHERE entries <> CASE WHEN status = 'completed' THEN 2 ELSE 0 END`,
			sum("the number of entries of payment ")},
		{`SELECT '', '', name, '', '', '', total, events FROM (SELECT c.name, c.total,
			(SELECT coalesce(sum(delta), 0) FROM counter_events e WHERE e.counter = c.name) AS events FROM counters c) AS counted WHERE total <> events`,
			sum("against its events, the total of counter ")},
	}
}
