package dynamopayments_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
)

func TestAPaymentIsBookedOnce(t *testing.T) {
	b, k := withAccounts(t, "100", "")
	k.DeliverTwice("payments.requested", "k1", payment("p1", "alice", "bob", "78.43"))
	require.Equal(t, map[string]int64{"alice": 2157, "bob": 7843, "equity:EUR": -10000}, b.balances())
	k.WantPublished("payments.completed", 1)
	require.JSONEq(t, `{"payment_id":"p1","status":"completed","from":"alice","to":"bob","amount":"78.43","currency":"EUR"}`,
		string(k.Published("payments.completed")[0].Payload))
	k.DeliverToRivals("payments.requested", "k2", payment("p2", "bob", "alice", "0.43"))
	require.Equal(t, map[string]int64{"alice": 2200, "bob": 7800, "equity:EUR": -10000}, b.balances())
	k.WantPublished("payments.completed", 2)
	k.WantPublished("payments.declined", 0)
	k.WantDead()
}

func TestFailureAtEachStep(t *testing.T) {
	b := newBooks(t)
	k := b.kit()
	prepare := func() {
		open(t, b.kit(), "alice", "EUR", "100")
		open(t, b.kit(), "bob", "EUR", "")
	}
	prepare()
	k.FailEverywhere("payments.requested", "k1", payment("p1", "alice", "bob", "30"), func(k *handlertest.Kit) {
		balances := b.balances()
		k.WantPublished("payments.completed", 1)
		b.Clear(b.config.DynamoDB.Prefix) // the next step has a database of its own, but these tables
		prepare()
		require.Equal(k.T(), map[string]int64{"alice": 7000, "bob": 3000, "equity:EUR": -10000}, balances)
		k.WantDead()
		k.WantQuiet()
	})
}

func TestADeclinedPaymentIsRemembered(t *testing.T) {
	b, k := withAccounts(t, "10", "100")
	require.Equal(t, handlertest.Completed, pay(k, "p1", "alice", "bob", "10.01"))
	k.WantPublished("payments.declined", 1)
	require.Equal(t, "insufficient-funds", dynamotest.Text(b.Items(b.table("payments"))[0], "reason"))

	require.Equal(t, handlertest.Completed, pay(k, "p2", "bob", "alice", "50")) // now there are funds
	require.Equal(t, handlertest.Duplicate, pay(k, "p1", "alice", "bob", "10.01"))
	another := b.kit() // whose database knows nothing
	require.Equal(t, handlertest.Completed, pay(another, "p1", "alice", "bob", "10.01"))
	another.WantPublished("payments.declined", 1) // by the first engine
	require.Equal(t, map[string]int64{"alice": 6000, "bob": 5000, "equity:EUR": -11000}, b.balances())
}

// The funds come, or go, between the reads and the commit.
func TestFundsThatMoveMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile []string // a payment
		amount    string
		topic     string
	}{
		"they come":          {[]string{"bob", "alice", "50"}, "60", "payments.completed"},
		"they go":            {[]string{"alice", "bob", "5"}, "6", "payments.declined"},
		"enough is left":     {[]string{"alice", "bob", "5"}, "5", "payments.completed"},
		"still not enough":   {[]string{"bob", "alice", "5"}, "60", "payments.declined"},
		"the last cent goes": {[]string{"alice", "bob", "0.01"}, "10", "payments.declined"},
	} {
		t.Run(name, func(t *testing.T) {
			b, k := withAccounts(t, "10", "100")
			rival := b.kit()
			at := b.Count(dynamotest.Transact) + 1
			b.Before(dynamotest.Transact, func(n int) {
				if n == at {
					require.Equal(t, handlertest.Completed, pay(rival, "rival", c.meanwhile[0], c.meanwhile[1], c.meanwhile[2])) //nolint:testifylint // the test waits for it
				}
			})
			require.Equal(t, handlertest.Completed, pay(k, "p1", "alice", "bob", c.amount))
			require.Len(t, slices.DeleteFunc(k.Published(c.topic), func(msg *message.Message) bool { return !strings.Contains(string(msg.Payload), `"p1"`) }), 1)
			b.balances()
		})
	}
}

func TestAPaymentIDIsUsedOnce(t *testing.T) {
	b, k := withAccounts(t, "100", "")
	require.Equal(t, handlertest.Completed, pay(k, "p1", "alice", "bob", "10"))
	require.Equal(t, handlertest.Dead, k.Deliver("payments.requested", "another", payment("p1", "alice", "bob", "10")))
	require.Equal(t, handlertest.Dead, k.Deliver("payments.requested", "a third", payment("p1", "alice", "bob", "11")))
	k.WantDead("payment-id-taken", "payment-id-taken")

	b.forget()
	late := b.kit()
	require.Equal(t, handlertest.Completed, pay(late, "p1", "alice", "bob", "10"))
	late.WantPublished("payments.completed", 1) // the first one
	require.Equal(t, map[string]int64{"alice": 9000, "bob": 1000, "equity:EUR": -10000}, b.balances())
}

// Two messages with one payment_id are under way at once.
func TestRivalsForAPaymentID(t *testing.T) {
	b, k := withAccounts(t, "100", "")
	rival := b.kit()
	at := b.Count(dynamotest.Transact) + 1
	b.Before(dynamotest.Transact, func(n int) {
		if n == at {
			require.Equal(t, handlertest.Completed, rival.Deliver("payments.requested", "rival", payment("p1", "alice", "bob", "1"))) //nolint:testifylint // the test waits for it
		}
	})
	require.Equal(t, handlertest.Dead, pay(k, "p1", "alice", "bob", "10"))
	k.WantDead("payment-id-taken")
	require.Equal(t, int64(9900), b.balances()["alice"])
}

func TestAnAccountIsOpenedOnce(t *testing.T) {
	b := newBooks(t)
	k := b.kit()
	k.DeliverTwice("accounts.opened", "open-alice", bookkeeping.Opened{AccountID: "alice", Currency: "EUR", OpeningBalance: "100"})
	require.Equal(t, handlertest.Dead, k.Deliver("accounts.opened", "another", bookkeeping.Opened{AccountID: "alice", Currency: "EUR", OpeningBalance: "100"}))
	require.Equal(t, handlertest.Dead, k.Deliver("accounts.opened", "a third", bookkeeping.Opened{AccountID: "equity:EUR", Currency: "EUR"}))
	k.WantDead("account-id-taken", "account_id")
	b.forget()
	open(t, b.kit(), "alice", "EUR", "100")
	require.Equal(t, map[string]int64{"alice": 10000, "equity:EUR": -10000}, b.balances())
}

func TestRefusedPaymentsLeaveNothing(t *testing.T) {
	b, k := withAccounts(t, "10", "")
	open(t, k, "yuki", "JPY", "")
	for i, c := range []struct {
		payment bookkeeping.Requested
		code    string
	}{
		{payment("", "alice", "bob", "1"), "payment_id"},
		{payment("p", "nobody", "bob", "1"), "from"},
		{payment("p", "alice", "nobody", "1"), "to"},
		{payment("p", "alice", "alice", "1"), "to"},
		{payment("p", "equity:EUR", "alice", "1"), "from"},
		{payment("p", "alice", "yuki", "1"), "currency"},
		{payment("p", "alice", "bob", "0.001"), "amount"},
		{payment("p", "alice", "bob", "-1"), "amount"},
	} {
		k := b.kit()
		require.Equal(t, handlertest.Dead, k.Deliver("payments.requested", itoa(i), c.payment), c.payment)
		k.WantDead(c.code)
	}
	require.Empty(t, b.Items(b.table("payments")))
	require.Len(t, b.Items(b.table("keys")), 3)
	b.balances()
}

// Numbers pass through no float: a float has 53 bits.
func TestF073LargeAmountsAreExact(t *testing.T) {
	b := newBooks(t)
	k := b.kit()
	open(t, k, "rich", "JPY", "9223372036854775806")
	open(t, k, "poor", "JPY", "1")
	big := func(id, from, to, amount string) handlertest.Outcome {
		return k.Deliver("payments.requested", id, bookkeeping.Requested{PaymentID: id, From: from, To: to, Amount: bookkeeping.Amount(amount), Currency: "JPY"})
	}
	require.Equal(t, handlertest.Completed, big("p1", "rich", "poor", "9007199254740993"))
	require.Equal(t, map[string]int64{"rich": 9214364837600034813, "poor": 9007199254740994, "equity:JPY": -math.MaxInt64}, b.balances())
	require.Equal(t, handlertest.Dead, k.Deliver("accounts.opened", "more", bookkeeping.Opened{AccountID: "more", Currency: "JPY", OpeningBalance: "2"}))
	k.WantDead("opening_balance")

	require.Equal(t, handlertest.Completed, k.Deliver("accounts.opened", "world", bookkeeping.Opened{AccountID: "world", Currency: "JPY", Kind: "external"}))
	require.Equal(t, handlertest.Completed, big("p2", "world", "rich", "9007199254740994"))
	require.Equal(t, handlertest.Dead, big("p3", "world", "rich", "1"))
	k.WantDead("opening_balance", "amount")
	require.Equal(t, int64(math.MaxInt64), b.balances()["rich"])
}

func TestLostAnswers(t *testing.T) {
	b, k := withAccounts(t, "100", "")
	b.Lose(dynamotest.Transact, 4)
	pay(k, "p1", "alice", "bob", "10")
	for range 4 {
		k.Advance(2 * time.Hour)
	}
	k.WantQuiet()
	k.WantDead()
	k.WantPublished("payments.completed", 1)
	require.Equal(t, map[string]int64{"alice": 9000, "bob": 1000, "equity:EUR": -10000}, b.balances())
}
