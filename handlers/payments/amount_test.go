package payments_test

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/handlers/internal/txtest"
)

// request is the body of a payment of id's own accounts whose amount is written as it stands.
func request(id, amount, currency string) string {
	return fmt.Sprintf(`{"payment_id":%q,"from":"from-%s","to":"to-%s","amount":%s,"currency":%q}`,
		id, id, id, amount, currency)
}

func TestF073AcceptedAmounts(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		for i, c := range []struct{ currency, written, minor, confirmed string }{
			{"EUR", "78.43", "7843", "78.43"},
			{"EUR", "100.9", "10090", "100.90"},
			{"EUR", "5", "500", "5.00"},
			{"EUR", "0.01", "1", "0.01"},
			{"EUR", "90071992547409.93", "9007199254740993", "90071992547409.93"},
			{"JPY", "9007199254740993", "9007199254740993", "9007199254740993"},
			{"JPY", "9223372036854775807", "9223372036854775807", "9223372036854775807"},
			{"KWD", "0.001", "1", "0.001"},
			{"CLF", "1.2345", "12345", "1.2345"},
		} {
			for form, written := range map[string]string{"string": strconv.Quote(c.written), "number": c.written} {
				t.Run(c.currency+" "+c.written+" as "+form, func(t *testing.T) {
					id := fmt.Sprint(form, i)
					openExternal(t, db, "from-"+id, c.currency)
					open(t, db, "to-"+id, c.currency, "0")
					d := db.Deliver("payments.requested", id, request(id, written, c.currency))
					require.NoError(t, d.Err)
					require.Equal(t, c.minor, db.Text(`SELECT CAST(amount AS text) FROM ledger_entries WHERE account = ?`, "to-"+id))
					require.Equal(t, c.minor, db.Text(`SELECT CAST(balance AS text) FROM accounts WHERE id = ?`, "to-"+id))
					require.Len(t, d.Published, 1)
					require.Contains(t, string(d.Published[0].Payload), `"amount":"`+c.confirmed+`"`)
				})
			}
		}
	})
}

func TestF073RefusedAmounts(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		for i, c := range []struct{ currency, body string }{
			{"EUR", `"0.001"`}, {"EUR", `0.001`}, {"EUR", `"5.000"`}, {"JPY", `"5.0"`}, {"JPY", `5.0`},
			{"EUR", `"-5.00"`}, {"EUR", `-5.00`}, {"EUR", `"0"`}, {"EUR", `0`}, {"EUR", `"0.00"`}, {"EUR", `-0`},
			{"EUR", `"1e3"`}, {"EUR", `1e3`}, {"EUR", `1E+3`},
			{"EUR", `"99999999999999999999"`}, {"EUR", `99999999999999999999`}, {"EUR", `"92233720368547758.08"`}, {"JPY", `9223372036854775808`},
			{"EUR", `"NaN"`}, {"EUR", `"Infinity"`}, {"EUR", `"5,00"`}, {"EUR", `"1,000.00"`}, {"EUR", `""`}, {"EUR", `null`},
			{"EUR", `" 5"`}, {"EUR", `"+5"`}, {"EUR", `"05"`}, {"EUR", `".5"`}, {"EUR", `"5."`}, {"EUR", `"0x10"`}, {"EUR", `"1_000"`},
			{"EUR", `"٥"`}, {"EUR", `true`}, {"EUR", `["5"]`}, {"EUR", `{"value":5}`}, {"EUR", `"5.00 EUR"`}, {"EUR", `"1/2"`},
		} {
			t.Run(c.currency+" "+c.body, func(t *testing.T) {
				id := fmt.Sprint(i)
				openExternal(t, db, "from-"+id, c.currency)
				open(t, db, "to-"+id, c.currency, "0")
				d := db.Deliver("payments.requested", id, request(id, c.body, c.currency))
				txtest.RequirePermanent(t, d.Err, "amount")
				require.Contains(t, d.Err.Error(), "amount: ")
				require.Zero(t, count(t, db, "ledger_entries"))
				require.Zero(t, count(t, db, "payments"))
			})
		}
	})
}

func TestF073MissingAmountAndBareNaN(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		d := db.Deliver("payments.requested", "k", `{"payment_id":"p","from":"a","to":"b","currency":"EUR"}`)
		require.Equal(t, "is missing", txtest.RequirePermanent(t, d.Err, "amount"))
		d = db.Deliver("payments.requested", "k", request("p", "NaN", "EUR")) // no JSON at all
		txtest.RequirePermanent(t, d.Err, "payload-not-json")
		require.Zero(t, count(t, db, "payments"))
	})
}

func TestF073AThousandTimesTenCents(t *testing.T) {
	books(t, func(t *testing.T, db *txtest.DB) {
		openExternal(t, db, "world", "EUR")
		open(t, db, "shop", "EUR", "0")
		for i := range 1000 {
			require.NoError(t, pay(db, fmt.Sprint(i), "world", "shop", "0.10").Err)
		}
		require.Equal(t, "10000", balance(db, "shop"))
		require.Equal(t, "-10000", balance(db, "world"))
	})
}

// Every decimal with two fraction digits is booked as exactly a hundred times its value.
func TestAmountsAreExact(t *testing.T) {
	db := txtest.Open(t, "sqlite", plugin(), "")
	openExternal(t, db, "world", "EUR")
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		units := rapid.Int64Range(1, 1<<62).Draw(r, "units")
		text := new(big.Rat).SetFrac64(units, 100).FloatString(2)
		if rapid.Bool().Draw(r, "short") {
			text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
		}
		shop, payment := fmt.Sprintf("shop-%d", n), fmt.Sprintf("p-%d", n)
		open(t, db, shop, "EUR", "0")
		require.NoError(r, pay(db, payment, "world", shop, text).Err)
		require.Equal(r, strconv.FormatInt(units, 10), balance(db, shop))
		require.NoError(r, pay(db, "back-"+payment, shop, "world", text).Err) // or the world's balance would overflow in the end
		require.Equal(r, "0", balance(db, shop))
	})
}
