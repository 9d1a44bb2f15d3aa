package dynamopayments_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/dynamopayments"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/internal/testenv"
)

// books are tables of a test's own.
type books struct {
	*dynamotest.Server
	t      *testing.T
	config dynamopayments.Config
}

func newBooks(t *testing.T) *books {
	t.Helper()
	return booksAt(t, testenv.Name(t, "p")+"-")
}

func booksAt(t *testing.T, prefix string) *books {
	t.Helper()
	b := &books{Server: dynamotest.Start(t), t: t, config: dynamopayments.Config{}.Defaults()}
	b.config.DynamoDB.Endpoint, b.config.DynamoDB.Region = b.Endpoint, dynamotest.Region
	b.config.DynamoDB.Prefix, b.config.DynamoDB.Create = prefix, true
	return b
}

// kit is an engine with a database of its own.
func (b *books) kit() *handlertest.Kit {
	b.t.Helper()
	return handlertest.New(b.t, dynamopayments.Plugin(), b.config)
}

func (b *books) table(name string) string { return b.config.DynamoDB.Prefix + name }

func number(t *testing.T, item dynamotest.Item, name string) int64 {
	t.Helper()
	n, err := dynamotx.Item(item).Int(name)
	require.NoError(t, err)
	return n
}

// balances are the accounts' balances, after a check that the books are right.
func (b *books) balances() map[string]int64 {
	b.t.Helper()
	accounts, currencies, entries := map[string]int64{}, map[string]int64{}, map[string][]int64{}
	for _, e := range b.Items(b.table("ledger")) {
		amount, of := number(b.t, e, "amount"), dynamotest.Text(e, "entry")
		accounts[dynamotest.Text(e, "account_id")] += amount
		currencies[dynamotest.Text(e, "currency")] += amount
		entries[of] = append(entries[of], amount)
	}
	for currency, sum := range currencies {
		require.Zero(b.t, sum, "the ledger of %s sums to zero", currency)
	}
	for of, amounts := range entries {
		require.Len(b.t, amounts, 2, "the entries of %s", of)
		require.Zero(b.t, amounts[0]+amounts[1], "the entries of %s", of)
	}
	for _, p := range b.Items(b.table("payments")) {
		booked := len(entries["payment:"+dynamotest.Text(p, "payment_id")])
		require.Equal(b.t, dynamotest.Text(p, "status") == "completed", booked == 2, "payment %s", dynamotest.Text(p, "payment_id"))
	}
	found := map[string]int64{}
	for _, a := range b.Items(b.table("accounts")) {
		id, balance := dynamotest.Text(a, "account_id"), number(b.t, a, "balance")
		require.Equal(b.t, accounts[id], balance, "the balance of %s is the sum of its entries", id)
		require.False(b.t, dynamotest.Text(a, "kind") == "customer" && balance < 0, "%s has %d", id, balance)
		found[id] = balance
	}
	return found
}

func open(t *testing.T, k *handlertest.Kit, id, currency, balance string) {
	t.Helper()
	require.Equal(t, handlertest.Completed, k.Deliver("accounts.opened", "open-"+id,
		bookkeeping.Opened{AccountID: id, Currency: currency, OpeningBalance: bookkeeping.Amount(balance)}))
}

func payment(id, from, to, amount string) bookkeeping.Requested {
	return bookkeeping.Requested{PaymentID: id, From: from, To: to, Amount: bookkeeping.Amount(amount), Currency: "EUR"}
}

func pay(k *handlertest.Kit, id, from, to, amount string) handlertest.Outcome {
	return k.Deliver("payments.requested", "key-"+id, payment(id, from, to, amount))
}

// forget has the keys table forget all keys.
func (b *books) forget() {
	b.t.Helper()
	for _, key := range b.Items(b.table("keys")) {
		key["expires_at"] = dynamotx.Int(time.Now().Add(-time.Hour).Unix())
		b.Put(b.table("keys"), key)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// withAccounts are books in which alice and bob have opened accounts, and an engine.
func withAccounts(t *testing.T, alice, bob string) (*books, *handlertest.Kit) {
	t.Helper()
	b := newBooks(t)
	k := b.kit()
	open(t, k, "alice", "EUR", alice)
	open(t, k, "bob", "EUR", bob)
	return b, k
}
