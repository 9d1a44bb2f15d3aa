package dynamotx_test

import (
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
)

// calls has the handler look at its tables.
func (b *bell) calls(tables ...dynamotx.Table) error {
	b.t.Helper()
	_, err := call(b.t, dynamotx.Handler{DB: dynamotx.New(b.cfg, tables...), Plan: planOf(dynamotx.Writes{})}.External())
	return err
}

func TestMissingTablesAreNamed(t *testing.T) {
	b := newBell(t)
	b.cfg.Create = false
	err := b.calls(bells, dynamotx.Table{Name: "ropes", Partition: "bell", Sort: "rope"})
	for _, want := range []string{
		"table " + b.cfg.Prefix + "keys: is not there", "partition key id (S), time to live on expires_at",
		"table " + b.cfg.Prefix + "outbox: is not there", "partition key lane (S), sort key record (S)",
		"table " + b.cfg.Prefix + "ropes: is not there", "partition key bell (S), sort key rope (S)",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotErrorAs(t, err, new(*handlers.PermanentError), "an operator can make them")
	b.cfg.Create = true
	require.NoError(t, b.calls(bells))
	b.cfg.Create = false
	require.NoError(t, b.calls(bells))
}

func TestTablesAreMadeOnce(t *testing.T) {
	b := newBell(t)
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() { require.NoError(t, b.calls(bells)) }) //nolint:testifylint // the errors of all count
	}
	work.Wait()
	require.Equal(t, []string{b.cfg.Prefix + "bells", b.cfg.Prefix + "keys", b.cfg.Prefix + "outbox"}, b.Tables(b.cfg.Prefix))
	out, err := b.Client().DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(b.cfg.Prefix + "keys")})
	require.NoError(t, err)
	require.Equal(t, "expires_at", *out.TimeToLiveDescription.AttributeName)
}

func TestATableWithAnotherKeyIsRefused(t *testing.T) {
	b := newBell(t)
	require.NoError(t, b.calls(bells))
	require.ErrorContains(t, b.calls(dynamotx.Table{Name: "bells", Partition: "bell", Sort: "rope"}), "has another key")
}

func TestF050TimeToLiveOnAnotherAttribute(t *testing.T) {
	b := newBell(t)
	require.NoError(t, b.calls(bells))
	name := aws.String(b.cfg.Prefix + "keys")
	set := func(attribute string, enabled bool) {
		_, err := b.Client().UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{TableName: name, TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String(attribute), Enabled: aws.Bool(enabled),
		}})
		require.NoError(t, err)
	}
	set("expires_at", false)
	set("done_at", true)
	require.ErrorContains(t, b.calls(bells), `time to live is on the attribute "done_at"`)
	set("done_at", false)
	b.cfg.Create = false
	require.ErrorContains(t, b.calls(bells), "time to live is off")
}

func TestADroppedTableIsLookedAtAgain(t *testing.T) {
	b := newBell(t)
	e := b.handler(b.once()).External()
	_, err := call(t, e)
	require.NoError(t, err)
	for _, table := range b.Tables(b.cfg.Prefix) {
		_, err := b.Client().DeleteTable(t.Context(), &dynamodb.DeleteTableInput{TableName: aws.String(table)})
		require.NoError(t, err)
	}
	_, err = call(t, e)
	require.Error(t, err)
	_, err = call(t, e) // makes them
	require.NoError(t, err)
	require.Equal(t, 1, b.rung())
}

func TestNoRegion(t *testing.T) {
	b := newBell(t)
	b.cfg.Region = ""
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	require.ErrorContains(t, b.calls(), "no region is set")
}
