package scenario

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// TestPaymentsInDynamoDBExactlyOnce is the main road with books and counters in DynamoDB: each payment is published two to four times, and one of two replicas is
// killed three times. The journal, in SQL, has each confirmation once.
func TestPaymentsInDynamoDBExactlyOnce(t *testing.T) {
	const payments = 150
	s := newSystem(t, "sql-postgres", "postgres")
	tables := s.inDynamoDB(testenv.DynamoDB(t).Endpoint)

	a, b := s.replica("a", false), s.replica("b", false)
	a.start()
	a.ready()
	b.start()
	b.ready()
	db := s.db()
	s.sendFromSeveral(1, openings())
	testenv.Eventually(t, 2*time.Minute, func() error {
		return expect(tables.count("payments-dynamodb-accounts"), accounts+1, "accounts, with that of equity")
	})

	s.payUnderKills(b, payments, func() int64 { return tables.count("payments-dynamodb-payments") })
	testenv.Eventually(t, 4*time.Minute, func() error {
		for what, query := range map[string]string{
			"in progress": `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`,
			"waiting":     `SELECT count(*) FROM parked WHERE state = 'waiting'`,
			"outbox":      `SELECT count(*) FROM outbox`,
		} {
			if err := expect(number(t, db, query), 0, what); err != nil {
				return err
			}
		}
		if err := expect(tables.outgoing(), 0, "outgoing messages in DynamoDB"); err != nil {
			return err
		}
		if err := expect(number(t, db, `SELECT count(*) FROM journal_entries`), payments, "journal"); err != nil {
			return err
		}
		return expect(tables.sum("counters-dynamodb-counters", "total")["payments.completed"], payments, "counted")
	})
	a.stop()
	b.stop()
	tables.checkBooks(payments)
	require.Zero(t, number(t, db, `SELECT count(*) FROM parked`), "nothing may be parked, dead or in doubt")
	require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE status <> 'completed'`))
}

// inDynamoDB has the plugins in DynamoDB do the work of those in SQL. The payments reach it by that endpoint.
func (s *system) inDynamoDB(endpoint string) tables {
	s.t.Helper()
	for _, plugin := range []string{"payments", "counters", "email"} {
		s.set("plugins/"+plugin+"/enabled", false)
	}
	prefix := s.service + "-"
	for plugin, endpoint := range map[string]string{"payments-dynamodb": endpoint, "counters-dynamodb": testenv.DynamoDB(s.t).Endpoint} {
		s.set("plugins/"+plugin+"/enabled", true)
		s.set("plugins/"+plugin+"/config/dynamodb", node{
			"endpoint": endpoint, "region": "eu-central-1", "create": true, "prefix": prefix + plugin + "-",
		})
	}
	s.write()
	return openTables(s.t, prefix)
}

// TestConfirmationsOfADeadProcess kills the process between its commit in DynamoDB and everything that would follow, and never delivers the message
// again: the confirmation leaves all the same, once.
func TestConfirmationsOfADeadProcess(t *testing.T) {
	s := newSystem(t, "sql-postgres", "postgres")
	committed, dead := make(chan struct{}), make(chan struct{})
	var armed, fired atomic.Bool
	upstream, err := url.Parse(testenv.DynamoDB(t).Endpoint)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream); r.Out.Host = r.In.Host }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !armed.Load() || !bytes.Contains(body, []byte("payments-dynamodb-ledger")) || !strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".TransactWriteItems") || fired.Swap(true) {
			proxy.ServeHTTP(w, r)
			return
		}
		proxy.ServeHTTP(httptest.NewRecorder(), r)
		close(committed)
		<-dead
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(front.Close)
	tables := s.inDynamoDB(front.URL)

	a := s.replica("a", false)
	a.start()
	a.ready()
	db := s.db()
	s.sendFromSeveral(1, openings())
	testenv.Eventually(t, time.Minute, func() error {
		return expect(tables.count("payments-dynamodb-accounts"), accounts+1, "accounts, with that of equity")
	})
	armed.Store(true)
	s.sendFromSeveral(1, []event{payment(0)})
	select {
	case <-committed:
	case <-time.After(time.Minute):
		t.Fatal("no payment came")
	}
	a.kill()
	close(dead)
	require.EqualValues(t, 1, tables.count("payments-dynamodb-payments"))
	require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE idempotency_key = $1 AND status = 'completed'`, payment(0).key))

	s.set("bindings/payments-dynamodb/enabled", false) // nobody takes the message again
	s.write()
	a.start()
	testenv.Eventually(t, time.Minute, func() error {
		if err := expect(number(t, db, `SELECT count(*) FROM journal_entries`), 1, "journal"); err != nil {
			return err
		}
		return expect(tables.sum("counters-dynamodb-counters", "total")["payments.completed"], 1, "counted")
	})
	a.stop()
	require.Zero(t, tables.outgoing())
	require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE idempotency_key = $1 AND status = 'completed'`, payment(0).key), "it was not delivered")
}

// tables reads what the plugins have written.
type tables struct {
	t      *testing.T
	client *dynamodb.Client
	prefix string
}

func openTables(t *testing.T, prefix string) tables {
	t.Helper()
	settings, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("eu-central-1"))
	require.NoError(t, err)
	return tables{t, dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) {
		o.BaseEndpoint = aws.String(testenv.DynamoDB(t).Endpoint)
	}), prefix}
}

// items are those of a table; one that is not there yet has none.
func (s tables) items(table string) []map[string]types.AttributeValue {
	s.t.Helper()
	var all []map[string]types.AttributeValue
	pages := dynamodb.NewScanPaginator(s.client, &dynamodb.ScanInput{TableName: aws.String(s.prefix + table), ConsistentRead: aws.Bool(true)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(context.Background())
		var missing *types.ResourceNotFoundException
		if err != nil {
			require.ErrorAs(s.t, err, &missing)
			return nil
		}
		all = append(all, page.Items...)
	}
	return all
}

func (s tables) count(table string) int64 {
	s.t.Helper()
	return int64(len(s.items(table)))
}

// outgoing counts the messages of payments that no relay has removed.
func (s tables) outgoing() (n int64) {
	s.t.Helper()
	for _, item := range s.items("payments-dynamodb-outbox") {
		if item["topic"] != nil {
			n++
		}
	}
	return n
}

// sum adds the attribute of the items that have the same name or account.
func (s tables) sum(table, attribute string) map[string]int64 {
	s.t.Helper()
	sums := map[string]int64{}
	for _, item := range s.items(table) {
		n, err := strconv.ParseInt(item[attribute].(*types.AttributeValueMemberN).Value, 10, 64)
		require.NoError(s.t, err)
		for _, name := range []string{"name", "account_id", "counter"} {
			if v, ok := item[name].(*types.AttributeValueMemberS); ok {
				sums[v.Value] += n
			}
		}
	}
	return sums
}

// checkBooks checks that each payment was made once and that every balance and total is right.
func (s tables) checkBooks(payments int) {
	s.t.Helper()
	require.EqualValues(s.t, payments, s.count("payments-dynamodb-payments"))
	entries, found := s.sum("payments-dynamodb-ledger", "amount"), s.sum("payments-dynamodb-accounts", "balance")
	require.Equal(s.t, entries, found, "each balance is the sum of its entries")
	var sum int64
	for _, balance := range found {
		sum += balance
	}
	require.Zero(s.t, sum, "the ledger must sum to zero")
	for id, want := range balances(payments) {
		require.Equal(s.t, want, found[id], fmt.Sprintf("balance of %s", id))
	}
	require.Equal(s.t, s.sum("counters-dynamodb-events", "delta"), s.sum("counters-dynamodb-counters", "total"))
}
