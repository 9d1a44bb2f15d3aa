package dynamostore_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// makeTable makes a table as an operator might, with its time to live on an attribute, if any.
func makeTable(t *testing.T, table, key string, kind types.ScalarAttributeType, ttl string) {
	t.Helper()
	c := plain(t)
	_, err := c.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: aws.String(table), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(key), AttributeType: kind}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(key), KeyType: types.KeyTypeHash}},
	})
	require.NoError(t, err)
	if ttl == "" {
		return
	}
	_, err = c.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{
		TableName:               aws.String(table),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(ttl), Enabled: aws.Bool(true)},
	})
	require.NoError(t, err)
}

// F050: a table whose time to live is on another attribute, or off, is refused with a word on what to do; so is one of somebody else.
func TestF050WrongTableIsRefused(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name, key, ttl string
		kind           types.ScalarAttributeType
		says           string
	}{
		{"time to live on another attribute", "id", "lease_until", types.ScalarAttributeTypeB, `on the attribute "lease_until" and must be on "expires_at"`},
		{"no time to live", "id", "", types.ScalarAttributeTypeB, "time to live is off"},
		{"another key", "pk", "expires_at", types.ScalarAttributeTypeB, `binary partition key "id"`},
		{"a key of text", "id", "expires_at", types.ScalarAttributeTypeS, `binary partition key "id"`},
		{"none", "", "", "", "databases.dynamodb.create"},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			c := config(t)
			c.Create = false
			if one.key != "" {
				makeTable(t, c.Table, one.key, one.kind, one.ttl)
				c.Create = one.name != "no time to live"
			}
			_, err := dynamostore.Open(t.Context(), c, quiet)
			require.ErrorAs(t, err, new(*dynamostore.TableError))
			require.ErrorContains(t, err, one.says)
			require.ErrorContains(t, err, c.Table)
		})
	}
	t.Run("a right one", func(t *testing.T) {
		t.Parallel()
		c := config(t)
		c.Create = false
		makeTable(t, c.Table, "id", types.ScalarAttributeTypeB, "expires_at")
		require.NoError(t, open(t, c).Ping(t.Context()))
	})
}

// Who made the table may have ended before its time to live was on.
func TestHalfMadeTableIsFinished(t *testing.T) {
	t.Parallel()
	c := config(t)
	makeTable(t, c.Table, "id", types.ScalarAttributeTypeB, "")
	open(t, c)
	c.Create = false
	open(t, c)
}

// Replicas of an application start at the same time.
func TestSeveralMakeTheTable(t *testing.T) {
	t.Parallel()
	c := config(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			s, err := dynamostore.Open(t.Context(), c, quiet)
			if err == nil {
				err = s.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	made, err := plain(t).DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &c.Table})
	require.NoError(t, err)
	require.Equal(t, types.BillingModePayPerRequest, made.Table.BillingModeSummary.BillingMode)
	ttl, err := plain(t).DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &c.Table})
	require.NoError(t, err)
	require.Equal(t, "expires_at", *ttl.TimeToLiveDescription.AttributeName)
	require.Equal(t, types.TimeToLiveStatusEnabled, ttl.TimeToLiveDescription.TimeToLiveStatus)
}

// A global table's replicas overwrite each other's leases, which external handlers cannot live with. The emulator has no global tables: what
// the service says of one is put into its answer.
func TestGlobalTableIsNamed(t *testing.T) {
	t.Parallel()
	c, f := fronted(t)
	replicas := []any{map[string]any{"RegionName": region, "ReplicaStatus": "ACTIVE"}, map[string]any{"RegionName": "us-east-1", "ReplicaStatus": "ACTIVE"}}
	for _, one := range []struct {
		name    string
		says    map[string]any
		forgets bool
	}{
		{"one region", nil, false},
		{"several", map[string]any{"GlobalTableVersion": "2019.11.21", "Replicas": replicas}, true},
		{"this one alone", map[string]any{"GlobalTableVersion": "2019.11.21", "Replicas": replicas[:1]}, false},
		{"several that agree first", map[string]any{"MultiRegionConsistency": "STRONG", "Replicas": replicas}, false},
		{"of the first kind, which tells no replicas", map[string]any{"GlobalTableVersion": "2017.11.29"}, true},
	} {
		f.change(func(f *front) { f.table = one.says })
		c.AllowLoss = false
		caps := open(t, c).Capabilities()
		require.True(t, caps.Durable, one.name)
		require.Equal(t, one.forgets, strings.Contains(caps.Forgets, "last writer wins"), one.name)
		c.AllowLoss = true
		caps = open(t, c).Capabilities()
		require.Empty(t, caps.Forgets, one.name)
		require.Equal(t, one.forgets, strings.Contains(strings.Join(caps.Caveats, "\n"), "last writer wins"), one.name)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	check := func(change func(*dynamostore.Config)) error {
		return dynamostore.Factory().Check(func(target any) error {
			change(target.(*dynamostore.Config))
			return nil
		})
	}
	require.NoError(t, check(func(*dynamostore.Config) {}))
	require.NoError(t, check(func(c *dynamostore.Config) { c.Endpoint = "http://localhost:8000" }))
	err := check(func(c *dynamostore.Config) { c.Endpoint, c.Table = "https://u:s3cr3t@host", "a/b" })
	require.ErrorContains(t, err, "endpoint")
	require.ErrorContains(t, err, "table")
	require.NotContains(t, err.Error(), "s3cr3t")
}

// A service that is away at the start stops nobody, and the table is looked at before the first step.
func TestServiceIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	c := config(t)
	makeTable(t, c.Table, "id", types.ScalarAttributeTypeB, "lease_until")
	proxied, proxy := throughProxy(t, c.Endpoint)
	proxy.Cut()
	c.Endpoint = proxied
	s := open(t, c)
	require.Contains(t, strings.Join(s.Capabilities().Caveats, "\n"), "did not answer")
	err := s.Ping(t.Context())
	require.Error(t, err)
	require.Equal(t, keystore.FaultUnavailable, s.Classify(err))
	proxy.Restore()
	err = s.Note(t.Context(), []keystore.Completion{{Claim: keystore.Claim{ID: keystore.ID{Scope: "s", Key: "k"}}, State: keystore.Completed}})
	require.ErrorContains(t, err, "must be on")
	require.Equal(t, keystore.FaultUnavailable, s.Classify(err))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Peek(ended, []keystore.ID{{Scope: "s", Key: "k"}})
	require.Error(t, err)
	require.Equal(t, keystore.FaultOther, s.Classify(err), "only the caller gave up")
}
