package handlertest_test

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/payments"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestProve(t *testing.T) {
	handlertest.New(t, shop(take), nil).Prove(once, placed)
}

// Payments on a server, where rivals really run at the same time and connections really break.
func TestPaymentsOnPostgres(t *testing.T) {
	server := testenv.PostgresServer(t)
	before := proofDatabases(t, server)
	t.Run("proof", func(t *testing.T) {
		provePayments(handlertest.New(t, payments.Plugin(), nil, handlertest.OnPostgres(server)))
	})
	require.Subset(t, before, proofDatabases(t, server), "also killed processes leave nothing")
}

func proofDatabases(t *testing.T, server string) (names []string) {
	t.Helper()
	db, err := sqlx.Open("pgx", server)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Select(&names, `SELECT datname FROM pg_database WHERE starts_with(datname, 'handlertest_')`))
	return names
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
