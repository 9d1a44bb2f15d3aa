package rabbitbroker_test

import (
	"net/url"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestConformance(t *testing.T) {
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T) brokertest.Harness { return harness(t, queueType) })
		})
	}
}

func TestWatermill(t *testing.T) {
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		t.Run(queueType, func(t *testing.T) {
			brokertest.Watermill(t, func(t *testing.T) brokertest.Harness { return harness(t, queueType) })
		})
	}
}

func BenchmarkRabbit(b *testing.B) {
	for _, queueType := range []string{rabbitbroker.Quorum, rabbitbroker.Classic} {
		b.Run(queueType, func(b *testing.B) { brokertest.Benchmark(b, harness(b, queueType)) })
	}
}

// harness gives a test a virtual host of its own, and each replica a proxy, whose cut is the replica's death.
func harness(t testing.TB, queueType string) brokertest.Harness {
	server := testenv.RabbitMQ(t)
	var proxies sync.Map
	return brokertest.Harness{
		Name: rabbitbroker.Name,
		Leaks: []goleak.Option{
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).server"),
			goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*Proxy).freeBlocker"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), // of the management API
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		},
		Open: func(t testing.TB) broker.Broker {
			if _, bench := t.(*testing.B); bench {
				return open(t, config(server.URL, queueType))
			}
			u, err := url.Parse(server.URL)
			require.NoError(t, err)
			proxy := testenv.Proxy(t, u.Host)
			u.Host = proxy.Addr
			b := open(t, config(u.String(), queueType))
			proxies.Store(b, proxy)
			return b
		},
		Crash: func(t testing.TB, b broker.Broker) {
			proxy, known := proxies.Load(b)
			require.True(t, known)
			proxy.(*testenv.TCPProxy).Cut()
		},
		Foreign: func(t testing.TB, topic string, m brokertest.Foreign) {
			headers := amqp.Table{}
			for name, value := range m.Headers {
				headers[name] = value
			}
			foreign(t, server.URL, topic, amqp.Publishing{MessageId: m.MessageID, Headers: headers, Body: m.Payload})
		},
	}
}
