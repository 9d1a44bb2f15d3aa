package scenario

import (
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

// TestEveryPaymentExactlyOnce is the main road: 2,000 payments, each published two to four times by several producers, two
// replicas, one of which is killed and started again three times. The same text runs on every broker and database.
func TestEveryPaymentExactlyOnce(t *testing.T) {
	onEverySystem(t, func(t *testing.T, s *system) {
		s.checkKeys(s.everyPaymentExactlyOnce() / 2)
	})
}

// everyPaymentExactlyOnce returns how many there were.
func (s *system) everyPaymentExactlyOnce() (payments int) {
	t := s.t
	payments = 2000
	if s.broker == "sqs" {
		payments = 300 // moto looks at every message of a queue in each request
	}
	sink := smtpsink.Start(t, smtpsink.Options{AbsorbRepeats: true})
	s.mailTo(sink)
	s.write()

	a, b := s.replica("a", false), s.replica("b", false)
	a.start()
	a.ready()
	b.start()
	b.ready()
	db := s.db()
	s.openAccounts(db)

	s.payUnderKills(b, payments, func() int64 { return number(t, db, `SELECT count(*) FROM payments`) })
	testenv.Eventually(t, 4*time.Minute, func() error { return settled(t, db, int64(payments)) })
	s.checkBooks(db, payments)
	s.checkLetters(sink, payments)
	a.stop()
	b.stop()
	left := s.drainQueues(t, map[string]string{
		"payments": "payments.requested", "email": "payments.completed", "counters": "payments.completed", "journal": "payments.completed",
	})
	t.Logf("copies that were still queued when the replicas stopped: %v", left)
	for binding, n := range left {
		// All effects are there, so these are copies: of the last messages, or of those that were read when b was killed.
		require.Less(t, n, payments/4, "copies in the queue of %s", binding)
	}
	return payments
}

// openAccounts opens those that payments are between.
func (s *system) openAccounts(db *sqlx.DB) {
	s.t.Helper()
	s.sendFromSeveral(1, openings())
	testenv.Eventually(s.t, time.Minute, func() error {
		return expect(number(s.t, db, `SELECT count(*) FROM accounts WHERE kind = 'customer'`), accounts, "accounts")
	})
}

// payUnderKills publishes each payment two to four times, while b is killed and started again three times; made counts the payments that are there.
func (s *system) payUnderKills(b *replica, payments int, made func() int64) {
	s.t.Helper()
	var events []event
	for n := range payments {
		for range 2 + n%3 {
			events = append(events, payment(n))
		}
	}
	sent := make(chan struct{})
	go func() { defer close(sent); s.sendFromSeveral(3, events) }()
	for kill := range int64(3) {
		testenv.Eventually(s.t, 2*time.Minute, func() error {
			return atLeast(made(), int64(payments)*(kill+1)/5, "payments before the next kill")
		})
		b.kill()
		b.start()
	}
	<-sent
	b.ready()
}

// mailTo makes the email plugin send to the sink. The sink takes a second letter with the same Message-ID without keeping
// it, as mailbox providers do, so that a letter whose outcome a crash left unknown may be sent again.
func (s *system) mailTo(sink *smtpsink.Sink) {
	host, port := split(s.t, sink.Addr())
	s.set("plugins/email/config", node{
		"transport": "smtp", "from": "bank@example.org",
		"smtp": node{"host": host, "port": port, "tls": "none"},
	})
	for _, binding := range []string{"email", "email-requested"} {
		s.set("bindings/"+binding+"/unknown_outcome", "retry")
	}
}

// settled says what is still on its way.
func settled(t *testing.T, db *sqlx.DB, payments int64) error {
	for _, q := range []struct {
		what  string
		want  int64
		query string
	}{
		{"payments", payments, `SELECT count(*) FROM payments`},
		{"letters", payments, `SELECT count(*) FROM letters`},
		{"counted", payments, `SELECT coalesce(sum(total), 0) FROM counters WHERE name = 'payments.completed'`},
		{"journal", payments, `SELECT count(*) FROM journal_entries`},
		{"outbox", 0, `SELECT count(*) FROM outbox`},
		{"waiting", 0, `SELECT count(*) FROM parked WHERE state = 'waiting'`},
		{"in progress", 0, `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`},
	} {
		if err := expect(number(t, db, q.query), q.want, q.what); err != nil {
			return err
		}
	}
	return nil
}

func expect(got, want int64, what string) error {
	if got != want {
		return fmt.Errorf("%s: %d, want %d", what, got, want)
	}
	return nil
}

func atLeast(got, want int64, what string) error {
	if got < want {
		return fmt.Errorf("%s: %d, want at least %d", what, got, want)
	}
	return nil
}

// checkBooks checks that each payment was made once and that every balance is right to the cent.
func (s *system) checkBooks(db *sqlx.DB, payments int) {
	t := s.t
	t.Helper()
	require.EqualValues(t, payments, number(t, db, `SELECT count(DISTINCT payment_id) FROM payments WHERE status = 'completed'`))
	require.EqualValues(t, 2*payments, number(t, db, `SELECT count(*) FROM ledger_entries WHERE payment_id IS NOT NULL`))
	require.Zero(t, number(t, db, `SELECT sum(amount) FROM ledger_entries`), "the ledger must sum to zero")
	for id, want := range balances(payments) {
		require.Equal(t, want, number(t, db, `SELECT balance FROM accounts WHERE id = ?`, id), "balance of %s", id)
		require.Equal(t, want, number(t, db, `SELECT sum(amount) FROM ledger_entries WHERE account = ?`, id), "entries of %s", id)
	}
	require.EqualValues(t, payments, number(t, db, `SELECT total FROM counters WHERE name = 'payments.completed'`))
	require.EqualValues(t, payments, number(t, db, `SELECT count(DISTINCT idempotency_key) FROM journal_entries`))
	require.Zero(t, number(t, db, `SELECT count(*) FROM parked`), "nothing may be parked, dead or in doubt")
	require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE status <> 'completed'`))
}

func (s *system) checkLetters(sink *smtpsink.Sink, payments int) {
	s.t.Helper()
	ids := map[string]int{}
	for _, letter := range sink.Letters() {
		ids[letter.MessageID]++
	}
	require.Len(s.t, ids, payments, "one letter for each payment")
	require.Len(s.t, sink.Letters(), payments)
	s.t.Logf("letters repeated after a crash and absorbed by their Message-ID: %d", sink.Absorbed())
}
