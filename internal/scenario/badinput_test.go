package scenario

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestBadInputIsBuriedWithAReason sends everything that a foreign producer can get wrong, and a good payment behind each: every bad
// message is a dead letter with its reason after one delivery, and delays nothing. (F010, F012, F013, F035, F073)
func TestBadInputIsBuriedWithAReason(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, s *system) {
		const limit = 64 << 10 // below what every broker takes, so that the engine's own limit is met
		s.set("max_payload", limit)
		s.write()
		r := s.replica("a", false)
		r.start()
		r.ready()
		db := s.db()
		for _, e := range openings() {
			s.foreign(e.topic, map[string]string{"idempotency-key": e.key}, e.body)
		}
		testenv.Eventually(t, time.Minute, func() error {
			return expect(number(t, db, `SELECT count(*) FROM accounts WHERE kind = 'customer'`), accounts, "accounts")
		})
		good := payment(0)
		s.foreign(good.topic, map[string]string{"idempotency-key": good.key}, good.body)
		testenv.Eventually(t, 30*time.Second, func() error { return expect(number(t, db, `SELECT count(*) FROM payments`), 1, "payments") })

		pay := func(amount, currency string) string {
			return fmt.Sprintf(`{"payment_id":"bad","from":%q,"to":%q,"amount":%s,"currency":%q}`, account(1), account(2), amount, currency)
		}
		for n, bad := range []struct {
			name, key, body, reason string
		}{
			{"no key", "", pay(`"1.00"`, "EUR"), "key-missing"},
			{"blank key", "   ", pay(`"1.00"`, "EUR"), "key-missing"},
			{"key of 300 bytes", strings.Repeat("k", 300), pay(`"1.00"`, "EUR"), "key-too-long"},
			{"control character in the key", "a\x1b[31mb", pay(`"1.00"`, "EUR"), "key-control-character"},
			{"not JSON", "bad-json", "{", "payload-not-json"},
			{"empty body", "bad-empty", "", "payload-not-json"},
			{"amount with a comma", "bad-comma", pay(`"5,00"`, "EUR"), "amount"},
			{"amount too precise", "bad-precise", pay(`"0.001"`, "EUR"), "amount"},
			{"negative amount", "bad-negative", pay(`"-5.00"`, "EUR"), "amount"},
			{"unknown currency", "bad-currency", pay(`"1.00"`, "XXQ"), "currency"},
			{"another payload under a used key", good.key, pay(`"250.00"`, "EUR"), "payload-mismatch"},
			{"body over the limit", "bad-size", strings.Repeat("x", limit+1), "payload-too-large"},
		} {
			headers := map[string]string{"idempotency-key": bad.key}
			if bad.key == "" {
				headers = nil
			}
			s.foreign("payments.requested", headers, bad.body)
			next := payment(n + 1)
			s.foreign(next.topic, map[string]string{"idempotency-key": next.key}, next.body)
			testenv.Eventually(t, 20*time.Second, func() error {
				return expect(number(t, db, `SELECT count(*) FROM payments`), int64(n+2), "payments behind: "+bad.name)
			})
			testenv.Eventually(t, 20*time.Second, func() error {
				return expect(number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead'`), int64(n+1), "dead letters after "+bad.name)
			})
			var reason string
			var body []byte
			require.NoError(t, db.QueryRow(`SELECT reason, payload FROM parked ORDER BY id DESC LIMIT 1`).Scan(&reason, &body))
			require.Equal(t, bad.reason, reason, bad.name)
			require.Equal(t, bad.body, string(body), "the body of a dead letter is kept as it came")
		}
		require.Zero(t, number(t, db, `SELECT coalesce(sum(amount), 0) FROM ledger_entries`))
		require.Zero(t, number(t, db, `SELECT count(*) FROM payments WHERE payment_id = 'bad'`))
	})
}
