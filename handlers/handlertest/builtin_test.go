//go:build !race

// The race detector makes SQLite five times slower, and what is proved here is the order of steps.

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
)

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

func TestBuiltinPayments(t *testing.T) { provePayments(handlertest.New(t, payments.Plugin(), nil)) }

// completed is what payments publish and the others take.
var completed = handlertest.Message{To: "payments.completed", Key: "done-1", Payload: map[string]string{
	"payment_id": "p1", "from": "alice", "to": "bob", "amount": "4.00", "currency": "EUR",
}}

func TestBuiltinCounters(t *testing.T) {
	handlertest.New(t, counters.Plugin(), nil).Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT total FROM counters WHERE name = 'payments.completed'`, 1)
	}, completed)
}

func TestBuiltinJournal(t *testing.T) {
	handlertest.New(t, journal.Plugin(), nil).Prove(func(k *handlertest.Kit) {
		k.WantRow(`SELECT count(*) FROM journal_entries`, 1)
	}, completed)
}

// A letter that may have been sent waits for a person, or is sent again under its Message-ID, as its policy says.
func TestBuiltinEmail(t *testing.T) {
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
