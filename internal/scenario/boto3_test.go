package scenario

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker/sqsbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// sending is one message of the producer that is written with boto3.
type sending struct {
	ID      string            `json:"id"`
	Group   string            `json:"group"`
	Body    string            `json:"body"`
	Headers map[string]string `json:"headers,omitempty"`
}

// boto3 sends by Amazon's SDK for Python.
func (s *system) boto3(topic string, all ...sending) {
	t := s.t
	t.Helper()
	var lines bytes.Buffer
	for _, one := range all {
		require.NoError(t, json.NewEncoder(&lines).Encode(one))
	}
	aws := testenv.SQS(t)
	cmd := exec.CommandContext(t.Context(), aws.Python, "testdata/send.py", aws.Endpoint, s.setting("region").(string),
		sqsbroker.QueuePrefix(s.setting("prefix").(string), topic))
	cmd.Stdin = &lines
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

func (s *system) foreignSQS(topic string, headers map[string]string, body string) {
	s.t.Helper()
	id := uuid.NewString()
	s.boto3(topic, sending{ID: id, Group: id, Body: body, Headers: headers})
}

// TestF070DeduplicationIDIsTheKey has a producer that knows nothing of Oncemill and relies on the deduplication id: each payment is sent twice at once,
// and once more when the first copies are done and moto, like SQS after its five minutes, has forgotten the id. Each is made once.
func TestF070DeduplicationIDIsTheKey(t *testing.T) {
	for _, kept := range []struct{ database, keys string }{{"sqlite", "database"}, {"postgres", "dynamodb"}} {
		t.Run(kept.database+"/"+kept.keys, func(t *testing.T) {
			const payments = 40
			s := newSystem(t, "sqs", kept.database)
			s.keepKeys(kept.keys)
			for _, binding := range []string{"payments", "payments-accounts"} {
				s.set("bindings/"+binding+"/key", "sqs-deduplication-id")
			}
			s.write()
			r := s.replica("a", false)
			r.start()
			r.ready()
			db := s.db()
			var opened, all []sending
			for _, e := range openings() {
				opened = append(opened, sending{ID: e.key, Group: "accounts", Body: e.body})
			}
			for n := range payments {
				e := payment(n)
				all = append(all, sending{ID: e.key, Group: fmt.Sprintf("customer-%d", n%5), Body: e.body})
			}
			s.boto3("accounts.opened", opened...)
			testenv.Eventually(t, 2*time.Minute, func() error {
				return expect(number(t, db, `SELECT count(*) FROM accounts WHERE kind = 'customer'`), accounts, "accounts")
			})
			s.boto3("payments.requested", append(all, all...)...)
			testenv.Eventually(t, 2*time.Minute, func() error {
				return expect(number(t, db, `SELECT count(*) FROM payments`), payments, "payments")
			})
			r.stop()
			s.emptyQueues(t, map[string]string{"payments": "payments.requested"})

			s.boto3("payments.requested", all...)
			r.start()
			r.ready()
			removed := fmt.Sprintf(`oncemill_messages_total{kind="duplicate",scope="%s/payments"} %d`, s.service, payments)
			testenv.Eventually(t, 2*time.Minute, func() error {
				if !strings.Contains(r.metrics(), removed) {
					return fmt.Errorf("the metrics do not say %s", removed)
				}
				return nil
			})
			require.EqualValues(t, payments, number(t, db, `SELECT count(*) FROM payments`))
			require.EqualValues(t, 2*payments, number(t, db, `SELECT count(*) FROM ledger_entries WHERE payment_id IS NOT NULL`))
			for id, want := range balances(payments) {
				require.Equal(t, want, number(t, db, `SELECT balance FROM accounts WHERE id = ?`, id), "balance of %s", id)
			}
			require.EqualValues(t, payments, number(t, db, `SELECT count(*) FROM processed_events WHERE idempotency_key LIKE 'order-%' AND scope LIKE '%/payments'`))
			r.stop()
			s.checkKeys(payments / 2)
		})
	}
}
