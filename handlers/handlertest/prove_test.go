package handlertest_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/counters"
	"github.com/oncemill/oncemill/handlers/email"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/journal"
	"github.com/oncemill/oncemill/handlers/payments"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestProve(t *testing.T) {
	handlertest.New(t, shop(take), nil).Prove(once, placed)
}

// Schedules of several faults: two messages, one of them refused.
func TestExplore(t *testing.T) {
	k := handlertest.New(t, shop(take), nil)
	k.Explore(func(k *handlertest.Kit) {
		k.WantRow(`SELECT count(*), n FROM seen, totals`, 1, 1)
		k.WantDead("order-without-id")
		k.WantQuiet()
	}, placed, handlertest.Message{To: "orders.placed", Key: "empty", Payload: order{}})
}

// The built-in plugins hold whatever breaks.

func TestPayments(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { provePayments(handlertest.New(t, payments.Plugin(), nil)) })
	t.Run("postgres", func(t *testing.T) {
		provePayments(handlertest.New(t, payments.Plugin(), nil, handlertest.OnPostgres(testenv.PostgresServer(t))))
	})
}

func provePayments(k *handlertest.Kit) {
	for _, account := range []string{"alice", "bob"} {
		k.DeliverTwice("accounts.opened", account, payments.Opened{AccountID: account, Currency: "EUR", OpeningBalance: "10.00"})
	}
	pay := payments.Requested{PaymentID: "p1", From: "alice", To: "bob", Amount: "4.00", Currency: "EUR"}
	k.Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT balance FROM accounts WHERE id = 'alice'`, 600)
		k.WantRow(`SELECT sum(amount) FROM ledger_entries`, 0)
		k.WantPublished("payments.completed", 1)
		k.WantQuiet()
	}, handlertest.Message{To: "payments.requested", Key: "pay-1", Payload: pay})
}

// completed is what payments publish and the others take.
var completed = handlertest.Message{To: "payments.completed", Key: "done-1", Payload: map[string]string{
	"payment_id": "p1", "from": "alice", "to": "bob", "amount": "4.00", "currency": "EUR",
}}

func TestCounters(t *testing.T) {
	handlertest.New(t, counters.Plugin(), nil).Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT total FROM counters WHERE name = 'payments.completed'`, 1)
	}, completed)
}

func TestJournal(t *testing.T) {
	handlertest.New(t, journal.Plugin(), nil).Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT count(*) FROM journal_entries`, 1)
	}, completed)
}

// A letter that may have been sent waits for a person, or is sent again under its Message-ID, as its policy says.
func TestEmail(t *testing.T) {
	for _, policy := range []handlers.UnknownPolicy{handlers.UnknownPark, handlers.UnknownRetry} {
		t.Run(string(policy), func(t *testing.T) {
			folder := t.TempDir()
			k := handlertest.New(t, email.Plugin(), "transport: folder\nfolder: "+folder, handlertest.WithUnknownOutcome(policy))
			k.Prove(func(k *handlertest.Kit) {
				k.WantRow(`SELECT count(*) FROM letters`, 1)
				letters, err := filepath.Glob(filepath.Join(folder, "*.eml"))
				require.NoError(k.T(), err)
				require.Len(k.T(), letters, 1)
			}, completed)
		})
	}
}
