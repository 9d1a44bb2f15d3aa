package payments_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
	"github.com/oncemill/oncemill/handlers/payments"
)

func plugin() handlers.Plugin { return payments.Plugin() }

func TestPaymentMovesMoney(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "100")
		open(t, db, "bob", "EUR", "0")
		d := pay(db, "p1", "alice", "bob", "78.43")
		require.NoError(t, d.Err)
		require.Equal(t, "2157", balance(db, "alice"))
		require.Equal(t, "7843", balance(db, "bob"))
		require.Equal(t, "-10000", balance(db, "equity:EUR"))

		const want = `{"payment_id":"p1","status":"completed","from":"alice","to":"bob","amount":"78.43","currency":"EUR"}`
		require.JSONEq(t, want, string(d.Result))
		require.Len(t, d.Published, 1)
		require.Equal(t, "payments.completed", d.Published[0].Topic)
		require.JSONEq(t, want, string(d.Published[0].Payload))
		require.Equal(t, "key-p1 completed 7843", db.Text(
			`SELECT idempotency_key || ' ' || status || ' ' || CAST(amount AS text) FROM payments WHERE payment_id = 'p1'`))
		require.NotEmpty(t, db.Text(`SELECT created_at FROM payments WHERE payment_id = 'p1'`))
	})
}

// A decline is an outcome: it is recorded and confirmed, and a second run of its message does not try again.
func TestF026DeclineIsRemembered(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "5")
		openExternal(t, db, "world", "EUR")
		d := pay(db, "p1", "alice", "world", "5.01")
		require.NoError(t, d.Err)
		require.Len(t, d.Published, 1)
		require.Equal(t, "payments.declined", d.Published[0].Topic)
		require.JSONEq(t, `{"payment_id":"p1","status":"declined","from":"alice","to":"world","amount":"5.01","currency":"EUR",
			"reason":"insufficient-funds"}`, string(d.Published[0].Payload))
		require.Equal(t, "500", balance(db, "alice"))

		require.NoError(t, pay(db, "p2", "world", "alice", "10").Err) // now there would be funds
		again := pay(db, "p1", "alice", "world", "5.01")
		require.NoError(t, again.Err)
		require.JSONEq(t, string(d.Result), string(again.Result))
		require.Empty(t, again.Published)
		require.Equal(t, "1500", balance(db, "alice"))
	})
}

func TestPaymentToTheLastCent(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "5")
		open(t, db, "bob", "EUR", "0")
		require.Equal(t, payments.Completed, outcome(t, pay(db, "p1", "alice", "bob", "5.00")).Status)
		require.Equal(t, payments.Declined, outcome(t, pay(db, "p2", "alice", "bob", "0.01")).Status)
		require.Equal(t, "0", balance(db, "alice"))
	})
}

func outcome(t *testing.T, d txtest.Delivery) (o payments.Outcome) {
	t.Helper()
	require.NoError(t, d.Err)
	require.NoError(t, json.Unmarshal(d.Result, &o))
	return o
}

func TestRefusedPayments(t *testing.T) {
	valid := payments.Requested{PaymentID: "p", From: "alice", To: "bob", Amount: "1", Currency: "EUR"}
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "100")
		open(t, db, "bob", "EUR", "0")
		open(t, db, "dora", "USD", "0")
		before := count(t, db, "ledger_entries")
		for name, c := range map[string]struct {
			change func(*payments.Requested)
			code   string
		}{
			"no payment_id":       {func(r *payments.Requested) { r.PaymentID = "" }, "payment_id"},
			"control character":   {func(r *payments.Requested) { r.PaymentID = "p\x00" }, "payment_id"},
			"replaced bytes":      {func(r *payments.Requested) { r.PaymentID = "p\xff" }, "payment_id"},
			"long payment_id":     {func(r *payments.Requested) { r.PaymentID = fmt.Sprintf("%0256d", 0) }, "payment_id"},
			"no from":             {func(r *payments.Requested) { r.From = "" }, "from"},
			"no to":               {func(r *payments.Requested) { r.To = "" }, "to"},
			"unknown from":        {func(r *payments.Requested) { r.From = "nobody" }, "from"},
			"unknown to":          {func(r *payments.Requested) { r.To = "nobody" }, "to"},
			"other case":          {func(r *payments.Requested) { r.From = "Alice" }, "from"},
			"to itself":           {func(r *payments.Requested) { r.To = "alice" }, "to"},
			"from equity":         {func(r *payments.Requested) { r.From = "equity:EUR" }, "from"},
			"to equity":           {func(r *payments.Requested) { r.To = "equity:EUR" }, "to"},
			"no currency":         {func(r *payments.Requested) { r.Currency = "" }, "currency"},
			"unknown currency":    {func(r *payments.Requested) { r.Currency = "EUX" }, "currency"},
			"lower case currency": {func(r *payments.Requested) { r.Currency = "eur" }, "currency"},
			"currency of neither": {func(r *payments.Requested) { r.Currency = "USD" }, "currency"},
			"other currency":      {func(r *payments.Requested) { r.To = "dora" }, "currency"},
		} {
			t.Run(name, func(t *testing.T) {
				request := valid
				c.change(&request)
				d := db.Deliver("payments.requested", "k", request)
				txtest.RequirePermanent(t, d.Err, c.code)
				require.Zero(t, count(t, db, "payments"))
				require.Equal(t, before, count(t, db, "ledger_entries"))
			})
		}
		require.NoError(t, db.Deliver("payments.requested", "k", valid).Err, "what they were made of is fine")
	})
}

// A second key for a payment_id is refused without a unique violation, which would abort the transaction on PostgreSQL.
func TestPaymentIDUnderASecondKey(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "100")
		open(t, db, "bob", "EUR", "0")
		request := payments.Requested{PaymentID: "p1", From: "alice", To: "bob", Amount: "1", Currency: "EUR"}
		require.NoError(t, db.Deliver("payments.requested", "first", request).Err)

		handle := db.Handler("payments.requested")
		msg := txtest.Message(t, "second", request)
		d := db.Do("second", func(ctx context.Context, tx handlers.Tx) (any, error) {
			_, err := handle(ctx, tx, msg)
			text := txtest.RequirePermanent(t, err, "payment-id-taken")
			require.Contains(t, text, `"first"`)
			var one int
			return nil, tx.QueryRowContext(ctx, `SELECT 1`).Scan(&one)
		})
		require.NoError(t, d.Err, "the transaction must still be usable")
		require.Equal(t, "9900", balance(db, "alice"))

		request.Amount = "2"
		d = db.Deliver("payments.requested", "first", request)
		txtest.RequirePermanent(t, d.Err, "payment-id-taken")
		require.Equal(t, "9900", balance(db, "alice"))
	})
}

func TestBalanceOverflowIsRefused(t *testing.T) {
	const most = "92233720368547758.07"
	books(t, func(t *testing.T, db *txtest.DB) {
		openExternal(t, db, "world", "EUR")
		openExternal(t, db, "other", "EUR")
		open(t, db, "bob", "EUR", "0")
		require.NoError(t, pay(db, "p1", "world", "bob", most).Err)
		d := pay(db, "p2", "other", "bob", "0.01")
		require.Contains(t, txtest.RequirePermanent(t, d.Err, "amount"), "receiving")
		require.NoError(t, pay(db, "p3", "world", "other", "0.01").Err) // down to the smallest
		d = pay(db, "p4", "world", "other", "0.01")
		require.Contains(t, txtest.RequirePermanent(t, d.Err, "amount"), "paying")
		require.Equal(t, "9223372036854775807", balance(db, "bob"))
		require.Equal(t, "-9223372036854775808", balance(db, "world"))
	})
}

func TestFailureLeavesNothing(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		open(t, db, "alice", "EUR", "100")
		open(t, db, "bob", "EUR", "0")
		handle := db.Handler("payments.requested")
		msg := txtest.Message(t, "k", payments.Requested{PaymentID: "p", From: "alice", To: "bob", Amount: "1", Currency: "EUR"})
		d := db.Do("k", func(ctx context.Context, tx handlers.Tx) (any, error) {
			_, err := handle(ctx, tx, msg)
			require.NoError(t, err)
			return nil, context.DeadlineExceeded
		})
		require.ErrorIs(t, d.Err, context.DeadlineExceeded)
		require.Zero(t, count(t, db, "payments"))
		require.Equal(t, "10000", balance(db, "alice"))
	})
}

// Payments in opposite directions lock the same two accounts: in the order of the ids they cannot deadlock.
func TestOppositePaymentsDoNotDeadlock(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		db.SetMaxOpenConns(8)
		open(t, db, "alice", "EUR", "1000")
		open(t, db, "bob", "EUR", "1000")
		var workers sync.WaitGroup
		failures := make(chan error, 8*40)
		for w := range 8 {
			from, to := "alice", "bob"
			if w%2 == 1 {
				from, to = to, from
			}
			workers.Go(func() {
				for i := range 40 {
					failures <- pay(db, fmt.Sprintf("p-%d-%d", w, i), from, to, "1").Err
				}
			})
		}
		workers.Wait()
		close(failures)
		for err := range failures {
			require.NoError(t, err)
		}
		require.Equal(t, "100000", balance(db, "alice"))
		require.Equal(t, 320, count(t, db, "payments"))
	})
}

// Rivals with one payment_id and different keys: one is booked, the others are refused.
func TestRivalsForOnePaymentID(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		db.SetMaxOpenConns(8)
		openExternal(t, db, "world", "EUR")
		for w := range 8 {
			open(t, db, fmt.Sprint("shop", w), "EUR", "0")
		}
		errs := make([]error, 8)
		var workers sync.WaitGroup
		for w := range 8 {
			workers.Go(func() {
				errs[w] = db.Deliver("payments.requested", fmt.Sprint("key", w),
					payments.Requested{PaymentID: "p", From: "world", To: fmt.Sprint("shop", w), Amount: "1", Currency: "EUR"}).Err
			})
		}
		workers.Wait()
		booked := 0
		for _, err := range errs {
			if err == nil {
				booked++
				continue
			}
			txtest.RequirePermanent(t, err, "payment-id-taken")
		}
		require.Equal(t, 1, booked)
		require.Equal(t, "-100", balance(db, "world"))
	})
}
