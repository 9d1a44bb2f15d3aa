package dynamostore_test

import (
	"log/slog"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/keystoretest"
)

const region = "eu-central-1"

var quiet = store.Options{Logger: slog.New(slog.DiscardHandler), ClientName: "test"}

func open(t *testing.T, c dynamostore.Config) *dynamostore.Store {
	t.Helper()
	s, err := dynamostore.Open(t.Context(), c, quiet)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// config names a table of the test's own, which is made when it is opened.
func config(t *testing.T) dynamostore.Config {
	t.Helper()
	return dynamostore.Config{Endpoint: testenv.DynamoDB(t).Endpoint, Region: region, Table: testenv.Name(t, "keys"), Create: true}
}

// plain is the SDK's client without the adapter.
func plain(t *testing.T) *dynamodb.Client {
	t.Helper()
	endpoint := testenv.DynamoDB(t).Endpoint
	settings, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion(region))
	require.NoError(t, err)
	return dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) { o.BaseEndpoint = aws.String(endpoint) })
}

func TestConformance(t *testing.T) {
	t.Parallel()
	keystoretest.RunElsewhere(t, func(t *testing.T) keystoretest.ElsewhereHarness {
		c := config(t)
		return keystoretest.ElsewhereHarness{
			Store:  open(t, c),
			Reopen: func(t *testing.T) keystore.Elsewhere { return open(t, c) },
		}
	})
}
