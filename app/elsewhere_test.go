package app

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// withRedis is a set that has Redis for its keys, and the environment that names a server.
func withRedis(t *testing.T, set Set, url string) (Set, []string) {
	t.Helper()
	set.Keys = []store.KeysFactory{redisstore.Factory()}
	return set, []string{"KEYS=redis", "DATABASES__REDIS__URL=" + url, "DATABASES__REDIS__PREFIX=" + testenv.Name(t, "app") + ":"}
}

// withDynamoDB is a set that has DynamoDB for its keys, and the environment that names a table.
func withDynamoDB(t *testing.T, set Set, table string) (Set, []string) {
	t.Helper()
	set.Keys = []store.KeysFactory{dynamostore.Factory()}
	return set, []string{
		"KEYS=dynamodb", "DATABASES__DYNAMODB__ENDPOINT=" + testenv.DynamoDB(t).Endpoint, "DATABASES__DYNAMODB__REGION=eu-central-1", "DATABASES__DYNAMODB__TABLE=" + table,
	}
}

// A forgotten key runs again, although the store elsewhere still says that it is completed.
func TestForgottenKeyRunsAgain(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		l := &tally{}
		set, env := withRedis(t, l.set(), testenv.Redis(t))
		forgottenKeyRunsAgain(t, newConsole(t, set, env...))
	})
	t.Run("dynamodb", func(t *testing.T) {
		t.Parallel()
		l := &tally{}
		set, env := withDynamoDB(t, l.set(), testenv.Name(t, "keys"))
		forgottenKeyRunsAgain(t, newConsole(t, set, append(env, "DATABASES__DYNAMODB__CREATE=true")...))
	})
}

func forgottenKeyRunsAgain(t *testing.T, c *console) {
	t.Helper()
	run := c.start()
	c.publish(tallyTopic, "order-1", `{"n":1}`)
	c.waitKey(tallyScope, "order-1", "completed")
	c.publish(tallyTopic, "order-1", `{"n":1}`)
	testenv.Eventually(t, 60*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="duplicate"`, 1) })

	before := c.ok("keys", "epoch")
	began := time.Now()
	c.ok("keys", "forget", "order-1", "--scope", tallyScope, "--force", "--why", "test")
	require.GreaterOrEqual(t, time.Since(began), keystore.EpochTrust, "it returns when no process trusts the epoch of before")
	require.NotEqual(t, before, c.ok("keys", "epoch"))
	c.publish(tallyTopic, "order-1", `{"n":1}`)
	testenv.Eventually(t, 60*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="completed"`, 2) })
	require.Equal(t, 2, c.effects("order-1"))

	now := c.ok("keys", "epoch")
	raised := c.ok("keys", "epoch", "--raise", "--why", "a backup was restored")
	require.NotEqual(t, now, raised)
	require.Equal(t, raised, c.ok("keys", "epoch"))
	code, _ := run.end()
	require.Equal(t, ExitOK, code, run.errs)
}

// F048: a server that can lose leases is refused for handlers that rely on them, and named.
func TestF048ForgetfulRedisIsRefused(t *testing.T) {
	t.Parallel()
	server := testenv.PrivateRedis(t, "--appendonly no --maxmemory-policy allkeys-lru")
	set, env := withRedis(t, Builtin(), server.Address)
	// Letters into a folder may be written again; by a mail server they park.
	c := newConsole(t, set, append(env, "BINDINGS__EMAIL__UNKNOWN_OUTCOME=park", "BINDINGS__EMAIL_REQUESTED__UNKNOWN_OUTCOME=park")...)
	text := c.fails(ExitRefused, "guarantees")
	for _, says := range []string{"binding email: ", "appendonly is off", "allkeys-lru", "allow_loss"} {
		require.Contains(t, text, says)
	}
	require.NotContains(t, text, "binding payments:", "hints may be lost")
	c.fails(ExitRefused, "run")
	require.Contains(t, c.with("DATABASES__REDIS__ALLOW_LOSS=true").ok("guarantees"), "allow_loss is set")
	c.with("BINDINGS__EMAIL__KEYS=database", "BINDINGS__EMAIL_REQUESTED__KEYS=database").ok("guarantees")

	server.Stop()
	require.Contains(t, c.fails(ExitFailed, "run"), "where external handlers have their leases")
	require.Contains(t, c.fails(ExitUsage, "run", "--set", "databases.redis.url=redis://u:s3cr3t@ho st"), "databases.redis")
	require.False(t, strings.Contains(c.fails(ExitUsage, "run", "--set", "databases.redis.url=redis://u:s3cr3t@ho st"), "s3cr3t"))
}

// F050: a table whose time to live is on the wrong attribute stops the start, with a word on what to do.
func TestF050WrongTableStopsTheStart(t *testing.T) {
	t.Parallel()
	table := testenv.Name(t, "keys")
	set, env := withDynamoDB(t, Builtin(), table)
	c := newConsole(t, set, env...)
	require.Contains(t, c.fails(ExitFailed, "run"), "databases.dynamodb.create", "it is missing")
	settings, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("eu-central-1"))
	require.NoError(t, err)
	client := dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String(testenv.DynamoDB(t).Endpoint) })
	_, err = client.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: aws.String(table), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeB}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("id"), KeyType: types.KeyTypeHash}},
	})
	require.NoError(t, err)
	live := func(attribute string, enabled bool) {
		_, err := client.UpdateTimeToLive(t.Context(), &dynamodb.UpdateTimeToLiveInput{
			TableName:               aws.String(table),
			TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attribute), Enabled: aws.Bool(enabled)},
		})
		require.NoError(t, err)
	}
	live("ttl", true)
	for _, command := range []string{"run", "guarantees"} {
		require.Contains(t, c.fails(ExitFailed, command), `time to live is on the attribute "ttl" and must be on "expires_at"`)
	}
	live("ttl", false)
	live("expires_at", true)
	require.Contains(t, c.ok("guarantees"), "the lease is in dynamodb")
	require.Contains(t, c.fails(ExitUsage, "config", "check", "--set", "databases.dynamodb.table=a/b"), "databases.dynamodb")
}
