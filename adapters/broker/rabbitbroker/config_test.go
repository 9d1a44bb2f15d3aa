package rabbitbroker_test

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
)

func check(text string) error {
	return rabbitbroker.Factory().Check(func(target any) error {
		return yaml.UnmarshalWithOptions([]byte(text), target, yaml.Strict())
	})
}

func TestConfigAccepts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"{}",
		"url: amqps://u:p%40ss@rabbit.example.org/payments",
		"{queue_type: classic, topology: verify, prefetch: 100, delivery_limit: 50, publish_timeout: 5s}",
		"{url_file: /run/secrets/rabbit, tls: {ca_file: ca.pem, cert_file: c.pem, key_file: k.pem, server_name: r}}",
		`topics: {payments.requested: {exchange: "", queues: {payments: payments.queue}}}`,
		"topics: {orders: {exchange: company.events, exchange_type: topic, routing_key: orders.created}}",
	} {
		require.NoError(t, check(text), text)
	}
}

func TestConfigRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"colour: red":                         "colour",
		"url: http://localhost":               "AMQP URL",
		"url: ''":                             "AMQP URL",
		"queue_type: stream":                  "queue_type",
		"topology: maybe":                     "topology",
		"prefetch: 70000":                     "prefetch",
		"prefetch: -1":                        "prefetch",
		"delivery_limit: 0":                   "delivery_limit",
		"publish_timeout: -1s":                "publish_timeout",
		"tls: {cert_file: c.pem}":             "belong together",
		"topics: {a/b: {}}":                   "topic",
		`topics: {t: {exchange: ""}}`:         "default exchange",
		"topics: {t: {exchange_type: round}}": "exchange_type",
		"topics: {t: {queues: {a: q, b: q}}}": "queue of its own",
		"topics: {t: {queues: {a: q}}, u: {queues: {b: q}}}":           "queue of its own",
		"{queue_type: stream, topology: maybe}":                        "topology",
		"topics: {t: {queues: {a: ''}}}":                               "0 bytes",
		`topics: {t: {exchange: "", queues: {a: one, b: two}}}`:        "default exchange",
		"url: amqp://guest:12/3@localhost:5672/":                       "percent-encoded",
		"topics: {t: {routing_key: " + strings.Repeat("k", 256) + "}}": "longer than",
	} {
		require.ErrorContains(t, check(text), want, text)
	}
}

func TestOpenValidates(t *testing.T) {
	t.Parallel()
	_, err := rabbitbroker.Open(t.Context(), defaults(func(c *rabbitbroker.Config) { c.QueueType = "stream" }), broker.Options{})
	require.ErrorContains(t, err, "queue_type")
}
