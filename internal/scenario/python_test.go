package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// foreignHeaders are headers that no Go program would send: numbers, nothing, and tables in tables.
var foreignHeaders = node{
	"retries": -3, "sent-at": int64(1) << 40, "tenant": nil, "ratio": true,
	"trace": node{"span": node{"id": 7, "parent": nil}, "tags": []any{"a", 1, nil, node{"deep": 1}}},
}

// python sends every event twice, by a program in testdata; with headers the idempotency key is one of them.
func (s *system) python(withKey bool, events []event) {
	t := s.t
	t.Helper()
	program, address := "testdata/send_pika.py", ""
	if s.broker == "kafka" {
		program, address = "testdata/send_confluent.py", strings.Join(s.setting("brokers").([]string), ",")
	} else {
		address = s.setting("url").(string)
	}
	var lines bytes.Buffer
	for _, e := range events {
		headers := node{}
		for name, value := range foreignHeaders {
			headers[name] = value
		}
		if withKey {
			headers["idempotency-key"] = e.key
		}
		topic := e.topic
		if s.broker == "kafka" {
			topic = s.setting("topics", e.topic, "name").(string)
		}
		require.NoError(t, json.NewEncoder(&lines).Encode(node{"topic": topic, "headers": headers, "body": e.body}))
	}
	cmd := exec.CommandContext(t.Context(), testenv.Python(t), program, address)
	cmd.Stdin = &lines
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// TestPythonProducers has payments of Python programs that know nothing of Oncemill and give their messages no id: the key is a header for one of
// the bindings, and stands in the payload for the other. Each payment is sent four times, at first while the process is killed, and is made once.
func TestPythonProducers(t *testing.T) {
	const header = "metadata:idempotency-key"
	for _, c := range []struct{ broker, database, payments, accounts string }{
		{"rabbitmq-quorum", "postgres", header, "json:/account_id"},
		{"kafka", "sqlite", "json:/payment_id", header},
	} {
		t.Run(c.broker, func(t *testing.T) {
			t.Parallel()
			const payments = 100
			s := newSystem(t, c.broker, c.database)
			s.set("bindings/payments/key", c.payments)
			s.set("bindings/payments-accounts/key", c.accounts)
			for _, other := range []string{"email", "counters"} {
				s.set("plugins/"+other+"/enabled", false)
			}
			if s.broker == "kafka" {
				s.set("brokers/kafka/session_timeout", "6s") // so long the killed process's partitions wait
			}
			s.write()
			r := s.replica("a", false)
			r.start()
			r.ready()
			db := s.db()
			s.python(c.accounts == header, openings())
			testenv.Eventually(t, time.Minute, func() error {
				return expect(number(t, db, `SELECT count(*) FROM accounts WHERE kind = 'customer'`), accounts, "accounts")
			})
			events := make([]event, payments)
			for n := range events {
				events[n] = payment(n)
			}
			sent := make(chan struct{})
			go func() { defer close(sent); s.python(c.payments == header, events) }()
			testenv.Eventually(t, time.Minute, func() error { return atLeast(number(t, db, `SELECT count(*) FROM payments`), payments/4, "payments") })
			r.kill()
			r.start()
			<-sent
			testenv.Eventually(t, time.Minute, func() error { return expect(number(t, db, `SELECT count(*) FROM payments`), payments, "payments") })
			r.ready()

			s.python(c.payments == header, events)
			testenv.Eventually(t, time.Minute, func() error {
				removed := fmt.Sprintf(`oncemill_messages_total{kind="duplicate",scope="%s/payments"} `, s.service)
				_, rest, found := strings.Cut(r.metrics(), removed)
				var n int64
				if _, err := fmt.Sscan(rest, &n); !found || err != nil {
					return fmt.Errorf("the metrics have no number of %s", removed)
				}
				return atLeast(n, 2*payments, "duplicates")
			})
			require.EqualValues(t, payments, number(t, db, `SELECT count(*) FROM payments`))
			for id, want := range balances(payments) {
				require.Equal(t, want, number(t, db, `SELECT balance FROM accounts WHERE id = ?`, id), "balance of %s", id)
			}
			var parked []struct{ Scope, State, Reason string }
			require.NoError(t, db.Select(&parked, `SELECT scope, state, reason FROM parked`))
			require.Empty(t, parked)
			r.stop()
		})
	}
}
