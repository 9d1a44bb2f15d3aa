package payments_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/handlers/payments"
)

func TestOpeningIsBookedAgainstEquity(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		opened := payments.Opened{AccountID: "alice", Currency: "EUR", OpeningBalance: "12.5"}
		d := db.Deliver("accounts.opened", "k", opened)
		require.NoError(t, d.Err)
		require.JSONEq(t, `{"account_id":"alice","currency":"EUR","opening_balance":"12.50","kind":"customer"}`, string(d.Result))
		require.Equal(t, "1250", balance(db, "alice"))
		require.Equal(t, "-1250", balance(db, "equity:EUR"))

		again := db.Deliver("accounts.opened", "k", opened) // its key has expired
		require.NoError(t, again.Err)
		require.JSONEq(t, string(d.Result), string(again.Result))
		require.Equal(t, "-1250", balance(db, "equity:EUR"))

		d = db.Deliver("accounts.opened", "k2", opened)
		require.Contains(t, txtest.RequirePermanent(t, d.Err, "account-id-taken"), `"k"`)
		opened.OpeningBalance = "13"
		d = db.Deliver("accounts.opened", "k", opened)
		txtest.RequirePermanent(t, d.Err, "account-id-taken")
	})
}

func TestRefusedOpenings(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		for name, c := range map[string]struct{ body, code string }{
			"no id":            {`{"currency":"EUR"}`, "account_id"},
			"id of equity":     {`{"account_id":"equity:EUR","currency":"EUR"}`, "account_id"},
			"no currency":      {`{"account_id":"a"}`, "currency"},
			"unknown currency": {`{"account_id":"a","currency":"XXQ"}`, "currency"},
			"negative":         {`{"account_id":"a","currency":"EUR","opening_balance":-1}`, "opening_balance"},
			"too precise":      {`{"account_id":"a","currency":"EUR","opening_balance":"0.001"}`, "opening_balance"},
			"kind":             {`{"account_id":"a","currency":"EUR","kind":"equity"}`, "kind"},
			"not JSON":         {`{"account_id":`, "payload-not-json"},
		} {
			t.Run(name, func(t *testing.T) {
				d := db.Deliver("accounts.opened", "k", c.body)
				txtest.RequirePermanent(t, d.Err, c.code)
				require.Zero(t, count(t, db, "accounts"))
			})
		}
	})
}

func TestEquityCannotUnderflow(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "a", "JPY", "9223372036854775807")
		open(t, db, "b", "JPY", "1")
		d := db.Deliver("accounts.opened", "k", payments.Opened{AccountID: "c", Currency: "JPY", OpeningBalance: "1"})
		txtest.RequirePermanent(t, d.Err, "opening_balance")
		require.Equal(t, "-9223372036854775808", balance(db, "equity:JPY"))
		require.Equal(t, 3, count(t, db, "accounts"), "a, b and equity: the refused one is rolled back")
	})
}

func TestManyOpeningsAtOnce(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		db.SetMaxOpenConns(8)
		errs := make([]error, 40)
		var workers sync.WaitGroup
		for i := range errs {
			workers.Go(func() {
				errs[i] = db.Deliver("accounts.opened", fmt.Sprint(i),
					payments.Opened{AccountID: fmt.Sprint("a", i), Currency: "EUR", OpeningBalance: "1"}).Err
			})
		}
		workers.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, "-4000", balance(db, "equity:EUR"))
	})
}

func TestEquityPrefixFromConfiguration(t *testing.T) {
	txtest.Each(t, payments.Plugin(), "equity_prefix: 'own-'", func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "1")
		require.Equal(t, "-100", balance(db, "own-EUR"))
		requireBalanced(t, db)
	})
	require.ErrorContains(t, payments.Config{}.Validate(), "equity_prefix")
}
