package scenario

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
	"github.com/oncemill/oncemill/internal/testenv/walkthrough"
)

// TestRecipes does what docs/operations.md says to do on the second day, by the document's own commands, on RabbitMQ and PostgreSQL.
func TestRecipes(t *testing.T) {
	t.Parallel()
	s := newSystem(t, "rabbitmq-classic", "postgres")
	s.service = "oncemill"
	s.set("service", s.service)
	s.set("bindings/payments/fingerprint", "json:/from,/to,/amount")
	s.set("bindings/payments/retry", node{"attempts": 2, "in_process": "0s", "first": "100ms"})
	sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{DropKept: 1}})
	s.mailTo(sink)
	s.set("bindings/email-requested/unknown_outcome", "park")
	s.set("bindings/email/enabled", false)
	s.write()
	a, b := s.replica("a", false), s.replica("b", false)
	a.start()
	a.ready()
	db := s.db()
	env := append(bareEnvironment(), "ONCEMILL_CONFIG="+s.file, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	sh := walkthrough.Open(t, s.dir, env)
	follow := func(heading string) {
		t.Helper()
		sh.Follow(walkthrough.Read(t, "../../docs/operations.md", heading), nil)
	}
	pay := func(key, id, from, to string) event {
		return event{topic: "payments.requested", key: key, body: fmt.Sprintf(`{"payment_id":%q,"from":%q,"to":%q,"amount":"12.50","currency":"EUR"}`, id, from, to)}
	}
	send := func(events ...event) { s.sendFromSeveral(1, events) }
	var opened []event
	for _, name := range []string{"alice", "shop", "bob"} {
		opened = append(opened, event{topic: "accounts.opened", key: "open-" + name, body: fmt.Sprintf(`{"account_id":%q,"currency":"EUR","opening_balance":"9000.00"}`, name)})
	}
	send(opened...)
	customers := func() error {
		return expect(number(t, db, `SELECT count(*) FROM accounts WHERE kind = 'customer'`), 3, "accounts")
	}
	testenv.Eventually(t, time.Minute, customers)
	dead := func(n int64) func() error {
		return func() error {
			return expect(number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead' AND reason = 'attempts-exhausted'`), n, "dead letters")
		}
	}
	payments := func(n int64) func() error {
		return func() error { return expect(number(t, db, `SELECT count(*) FROM payments`), n, "payments") }
	}
	// broken takes a table away from the handler while messages fail.
	broken := func(during func()) {
		_, err := db.Exec(`ALTER TABLE accounts RENAME TO accounts_away`)
		require.NoError(t, err)
		during()
		_, err = db.Exec(`ALTER TABLE accounts_away RENAME TO accounts`)
		require.NoError(t, err)
	}

	send(pay("order-123-creation", "p1", "alice", "shop"))
	testenv.Eventually(t, time.Minute, payments(1))
	send(pay("order-123-creation-attempt2", "p2", "alice", "shop"))
	testenv.Eventually(t, time.Minute, payments(2))
	follow(`## "I was charged twice"`)
	require.EqualValues(t, 900000-1250, number(t, db, `SELECT balance FROM accounts WHERE id = 'alice'`))

	broken(func() {
		send(pay("order-17", "p17", "alice", "bob"))
		testenv.Eventually(t, time.Minute, dead(1))
	})
	follow("## A payment is stuck")
	require.EqualValues(t, 900000+1250, number(t, db, `SELECT balance FROM accounts WHERE id = 'bob'`))

	// 300 dead letters. The last redrive is killed, and given again while a second replica joins.
	const letters = 300
	broken(func() {
		var events []event
		for n := range letters {
			events = append(events, pay(fmt.Sprintf("order-late-%03d", n), fmt.Sprintf("late-%03d", n), "shop", "alice"))
		}
		send(events...)
		testenv.Eventually(t, 2*time.Minute, dead(letters))
	})
	const before = 4 // payments that were made until now
	commands := walkthrough.Read(t, "../../docs/operations.md", "## Hundreds of dead letters of one cause")[0].Commands()
	last := len(commands) - 1
	for _, command := range commands[:last] {
		sh.Run(command)
	}
	testenv.Eventually(t, time.Minute, payments(before+1))
	redrive := exec.Command("bash", "-c", "exec "+commands[last])
	redrive.Env = env
	require.NoError(t, redrive.Start())
	testenv.Eventually(t, time.Minute, func() error {
		return atLeast(number(t, db, `SELECT count(*) FROM payments`), before+letters/6, "payments before the kill")
	})
	require.NoError(t, redrive.Process.Kill())
	require.Error(t, redrive.Wait(), "it was not done yet")
	b.start()
	sh.Run(commands[last])
	testenv.Eventually(t, time.Minute, payments(before+letters))
	require.NoError(t, dead(0)())
	require.EqualValues(t, 900000-2*1250+letters*1250, number(t, db, `SELECT balance FROM accounts WHERE id = 'alice'`))
	b.ready()

	send(event{topic: "email.requested", key: "reminder-77", body: `{"to":"alice@example.org","subject":"hello","text":"pay"}`})
	follow("## Keys in doubt")
	require.Len(t, sink.Letters(), 1, "the server had it, and it was not sent again")
	require.Zero(t, number(t, db, `SELECT count(*) FROM parked`))
	a.stop()
	b.stop()
}
