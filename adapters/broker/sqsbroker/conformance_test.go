package sqsbroker_test

import (
	"context"
	"log/slog"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/adapters/broker/sqsbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

const patience = 60 * time.Second

func TestConformance(t *testing.T) {
	brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t) })
}

func TestWatermill(t *testing.T) {
	brokertest.Watermill(t, func(t *testing.T) brokertest.Harness { return harness(t) })
}

func BenchmarkSQS(b *testing.B) { brokertest.Benchmark(b, harness(b)) }

// harness gives each replica a proxy, whose cut is the replica's death.
func harness(t testing.TB) brokertest.Harness {
	endpoint := testenv.SQS(t).Endpoint
	client := plain(t)
	prefix := "t" + uuid.NewString()[:8] + "-"
	var proxies sync.Map
	return brokertest.Harness{
		Name: sqsbroker.Name, AlwaysIdentified: true, Patience: patience,
		FewMessages: true, // moto looks through the whole queue at each request
		Leaks: []goleak.Option{
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).server"),
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).freeBlocker"),
		},
		Open: func(t testing.TB) broker.Broker {
			if _, bench := t.(*testing.B); bench {
				return open(t, config(endpoint, prefix, nil))
			}
			proxied, proxy := throughProxy(t, endpoint)
			b := open(t, config(proxied, prefix, nil))
			proxies.Store(b, proxy)
			return b
		},
		Crash: func(t testing.TB, b broker.Broker) {
			proxy, known := proxies.Load(b)
			require.True(t, known)
			proxy.(*testenv.TCPProxy).Cut()
		},
		Foreign: func(t testing.TB, topic string, m brokertest.Foreign) {
			id := m.MessageID
			if id == "" {
				id = uuid.NewString()
			}
			attributes := map[string]types.MessageAttributeValue{}
			for name, value := range m.Headers {
				attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(value)}
			}
			for _, queue := range queuesOf(t, client, prefix, topic) {
				_, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
					QueueUrl: aws.String(queue), MessageBody: aws.String(string(m.Payload)), MessageAttributes: attributes,
					MessageGroupId: aws.String(id), MessageDeduplicationId: aws.String(id),
				})
				require.NoError(t, err)
			}
		},
		Remove: func(t testing.TB, topic string, _ []string) {
			for _, queue := range queuesOf(t, client, prefix, topic) {
				_, _ = client.DeleteQueue(context.WithoutCancel(t.Context()), &sqs.DeleteQueueInput{QueueUrl: aws.String(queue)})
			}
		},
	}
}

// throughProxy is the endpoint behind a proxy.
func throughProxy(t testing.TB, endpoint string) (string, *testenv.TCPProxy) {
	t.Helper()
	u, err := url.Parse(endpoint)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	return u.String(), proxy
}

// config is the default configuration, made as the application makes it, with short times.
func config(endpoint, prefix string, change func(*sqsbroker.Config)) sqsbroker.Config {
	var cfg sqsbroker.Config
	_ = sqsbroker.Factory().Check(func(target any) error {
		cfg = *target.(*sqsbroker.Config)
		return nil
	})
	cfg.Endpoint, cfg.Region, cfg.Prefix = endpoint, "eu-central-1", prefix
	cfg.Visibility, cfg.Wait, cfg.Discover, cfg.CaughtUpAfter = 6*time.Second, time.Second, 500*time.Millisecond, time.Second
	if change != nil {
		change(&cfg)
	}
	return cfg
}

func open(t testing.TB, cfg sqsbroker.Config) broker.Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	b, err := sqsbroker.Open(ctx, cfg, broker.Options{Logger: slog.New(slog.DiscardHandler), ClientName: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// plain is the SDK's client without the adapter.
func plain(t testing.TB) *sqs.Client {
	t.Helper()
	endpoint := testenv.SQS(t).Endpoint
	settings, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithRegion("eu-central-1"))
	require.NoError(t, err)
	return sqs.NewFromConfig(settings, func(o *sqs.Options) { o.BaseEndpoint = aws.String(endpoint) })
}

// queuesOf finds the topic's queues as an operator would: by their names, which begin with the topic's.
func queuesOf(t testing.TB, client *sqs.Client, prefix, topic string) []string {
	t.Helper()
	out, err := client.ListQueues(context.WithoutCancel(t.Context()), &sqs.ListQueuesInput{QueueNamePrefix: aws.String(sqsbroker.QueuePrefix(prefix, topic))})
	require.NoError(t, err)
	return out.QueueUrls
}
