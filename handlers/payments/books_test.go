package payments_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/handlers/payments"
)

// books runs a test on each database and checks the invariants of the ledger at its end.
func books(t *testing.T, run func(t *testing.T, db *txtest.DB)) {
	txtest.Each(t, payments.Plugin(), "", func(t *testing.T, db *txtest.DB) {
		run(t, db)
		requireBalanced(t, db)
	})
}

// requireBalanced checks that the ledger sums to zero in each currency and each payment, and that balances are the sums of their entries.
func requireBalanced(t *testing.T, db *txtest.DB) {
	t.Helper()
	for name, query := range map[string]string{
		"currencies that do not sum to zero": `SELECT count(*) FROM (SELECT 1 FROM ledger_entries GROUP BY currency HAVING sum(amount) <> 0) x`,
		"payments that do not sum to zero": `SELECT count(*) FROM (SELECT 1 FROM ledger_entries WHERE payment_id IS NOT NULL
			GROUP BY payment_id HAVING sum(amount) <> 0 OR count(*) <> 2) x`,
		"openings that do not sum to zero": `SELECT count(*) FROM (SELECT 1 FROM ledger_entries WHERE opening_of IS NOT NULL
			GROUP BY opening_of HAVING sum(amount) <> 0 OR count(*) <> 2) x`,
		"balances that differ from their entries": `SELECT count(*) FROM accounts a WHERE balance <>
			(SELECT coalesce(sum(amount), 0) FROM ledger_entries e WHERE e.account = a.id)`,
		"completed payments without entries": `SELECT count(*) FROM payments p WHERE status = 'completed' AND NOT EXISTS
			(SELECT 1 FROM ledger_entries e WHERE e.payment_id = p.payment_id)`,
		"declined payments with entries": `SELECT count(*) FROM payments p WHERE status = 'declined' AND EXISTS
			(SELECT 1 FROM ledger_entries e WHERE e.payment_id = p.payment_id)`,
	} {
		require.Equal(t, "0", db.Text(query), name)
	}
}

func open(t *testing.T, db *txtest.DB, id, currency, balance string) {
	t.Helper()
	require.NoError(t, db.Deliver("accounts.opened", "open-"+id,
		payments.Opened{AccountID: id, Currency: currency, OpeningBalance: payments.Amount(balance)}).Err)
}

// openExternal opens an account that can pay any amount.
func openExternal(t *testing.T, db *txtest.DB, id, currency string) {
	t.Helper()
	require.NoError(t, db.Deliver("accounts.opened", "open-"+id,
		payments.Opened{AccountID: id, Currency: currency, Kind: "external"}).Err)
}

func pay(db *txtest.DB, id, from, to, amount string) txtest.Delivery {
	return db.Deliver("payments.requested", "key-"+id,
		payments.Requested{PaymentID: id, From: from, To: to, Amount: payments.Amount(amount), Currency: "EUR"})
}

func balance(db *txtest.DB, id string) string {
	return db.Text(`SELECT balance FROM accounts WHERE id = ?`, id)
}

func count(t *testing.T, db *txtest.DB, table string) int {
	t.Helper()
	n, err := strconv.Atoi(db.Text(`SELECT count(*) FROM ` + table))
	require.NoError(t, err)
	return n
}
