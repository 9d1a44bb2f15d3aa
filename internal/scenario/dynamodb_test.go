package scenario

import (
	"context"
	"fmt"
	"strconv"
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
	for _, plugin := range []string{"payments", "counters", "email"} {
		s.set("plugins/"+plugin+"/enabled", false)
	}
	prefix := s.service + "-"
	for _, plugin := range []string{"payments-dynamodb", "counters-dynamodb"} {
		s.set("plugins/"+plugin+"/enabled", true)
		s.set("plugins/"+plugin+"/config/dynamodb", node{
			"endpoint": testenv.DynamoDB(t).Endpoint, "region": "eu-central-1", "create": true, "prefix": prefix + plugin + "-",
		})
	}
	s.write()
	tables := openTables(t, prefix)

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
