package kafkabroker_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// decodeYAML is what the application hands to a factory.
func decodeYAML(text string) func(any) error {
	return func(into any) error { return yaml.UnmarshalWithOptions([]byte(text), into, yaml.Strict()) }
}

func TestConfigOfYAML(t *testing.T) {
	t.Parallel()
	check := kafkabroker.Factory().Check
	require.NoError(t, check(decodeYAML(`brokers: ["kafka:9092"]`)))
	require.NoError(t, check(decodeYAML(`
brokers: [kafka-1:9092, kafka-2:9092]
client_id: payments
version: 3.6.0
topology: verify
partitions: 12
replication: 3
min_insync_replicas: 2
topics: {payments.requested: {name: prod.payments.requested}}
groups: {payments: prod-payments}
max_message_bytes: 2000000
window: 512
offsets_interval: 100ms
session_timeout: 30s
settle_timeout: 5s
tls: {enabled: true, ca_file: /ca.pem, cert_file: /c.pem, key_file: /k.pem, server_name: kafka}
sasl: {mechanism: SCRAM-SHA-512, user: payments, password_file: /run/secrets/kafka}
`)))
	require.Error(t, check(decodeYAML(`brokrs: [kafka:9092]`)), "an unknown name")
}

// Each problem names its key, and all are reported at once.
func TestConfigProblems(t *testing.T) {
	t.Parallel()
	bad := `
brokers: [kafka]
version: 1.0.0
topology: maybe
partitions: 0
replication: 0
min_insync_replicas: -1
topics: {a: {name: same}, b: {name: same}, c: {name: "not/allowed"}, "d/e": {name: x}}
groups: {g: ""}
window: 1
offsets_interval: 0s
session_timeout: 1ms
settle_timeout: 1h
tls: {ca_file: /ca.pem}
sasl: {mechanism: MAGIC}
`
	err := kafkabroker.Factory().Check(decodeYAML(bad))
	for _, name := range []string{
		"brokers[0]", "version", "topology", "partitions", "replication", "min_insync_replicas", "a and b", "topics.c.name", "d/e", "groups.g",
		"window", "offsets_interval", "session_timeout", "settle_timeout", "tls.enabled", "sasl.mechanism", "sasl.user", "sasl.password",
	} {
		require.ErrorContains(t, err, name)
	}
	require.ErrorContains(t, kafkabroker.Factory().Check(decodeYAML(`{}`)), "brokers is empty")
}

// F083: no way of printing a configuration shows the password.
func TestF083SecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-Zq!"
	conf := kafkabroker.SASLConfig{Mechanism: "PLAIN", User: "u", Password: secret}
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("x", "conf", conf, "password", conf.Password)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb, conf)
		fmt.Fprintf(&out, verb, conf.Password)
	}
	text, err := json.Marshal(conf)
	require.NoError(t, err)
	out.Write(text)
	text, err = yaml.Marshal(conf)
	require.NoError(t, err)
	out.Write(text)
	require.NotContains(t, out.String(), secret)
	require.NotContains(t, out.String(), fmt.Sprintf("%x", secret))
	require.Contains(t, out.String(), "[hidden]")
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	ms := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	week := newTopic(t, 1, map[string]string{"retention.ms": ms(7 * day), "segment.ms": ms(day), "min.insync.replicas": "1"})
	b := open(t, testConfig(t))
	require.Zero(t, b.Capabilities().LongestRedelivery, "no topic is known")
	require.NoError(t, b.Declare(t.Context(), week, nil))
	caps := b.Capabilities()
	require.Equal(t, 8*day, caps.LongestRedelivery)
	require.Contains(t, caps.RedeliveryReason, "retention.ms")
	require.Equal(t, broker.OrderByKey, caps.Ordering)
	require.False(t, caps.Durable, "one replica")
	require.Contains(t, strings.Join(caps.Caveats, " "), week)

	for _, config := range []map[string]string{{"retention.ms": "-1"}, {"cleanup.policy": "compact"}} {
		b := open(t, testConfig(t))
		forEver := newTopic(t, 1, config)
		require.NoError(t, b.Declare(t.Context(), week, nil))
		require.NoError(t, b.Declare(t.Context(), forEver, nil))
		require.Zero(t, b.Capabilities().LongestRedelivery, config)
		require.Contains(t, b.Capabilities().RedeliveryReason, forEver)
	}
}

// Topics and groups have the names that operators gave them.
func TestMappedNames(t *testing.T) {
	t.Parallel()
	physical := newTopic(t, 1, nil)
	conf := testConfig(t)
	conf.Topology = "verify"
	conf.Topics = map[string]kafkabroker.TopicConfig{"orders": {Name: physical}}
	conf.Groups = map[string]string{"shop.orders": physical + "-group"}
	b := open(t, conf)
	require.NoError(t, b.Declare(t.Context(), "orders", nil))
	require.NoError(t, b.Publisher().Publish("orders", newMessages(1, "")...))
	r := subscribe(t, b, broker.Subscription{Topic: "orders", Group: "shop.orders"})
	msg := r.next()
	require.Equal(t, physical+"/0/0", delivery(msg).Position)
	msg.Ack()
	r.drain()
	require.Equal(t, int64(1), committed(t, physical+"-group", physical, 0)[0])
	has, err := b.CommittedOffsets(t.Context(), "shop.orders", "orders")
	require.NoError(t, err)
	require.True(t, has)
}

// Where operators own the topology, a topic of theirs that is missing is named as they know it, nothing is made, and the program goes on by itself
// once it is there.
func TestOperatorsOwnTopology(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{kafkabroker.TopologyVerify, kafkabroker.TopologyOff} {
		physical := testenv.Name(t, "kb")
		t.Cleanup(func() { removeTopic(t, physical) })
		conf := testConfig(t)
		conf.Topology = topology
		conf.Topics = map[string]kafkabroker.TopicConfig{"orders": {Name: physical}}
		conf.Groups = map[string]string{"shop.orders": physical + "-group"}
		b := open(t, conf)
		if topology == kafkabroker.TopologyVerify {
			require.ErrorContains(t, b.Declare(t.Context(), "orders", nil), "topic "+physical+" does not exist", topology)
		} else {
			require.NoError(t, b.Declare(t.Context(), "orders", nil), topology)
		}
		err := b.Publisher().Publish("orders", newMessages(1, "")...)
		require.ErrorIs(t, err, outbox.ErrUnroutable, topology)
		require.ErrorContains(t, err, physical, topology)
		r := subscribe(t, b, broker.Subscription{Topic: "orders", Group: "shop.orders"})
		require.Error(t, r.sub.Consuming(), topology)
		require.NotContains(t, clusterTopics(t), physical, topology)

		require.NoError(t, open(t, testConfig(t)).Declare(t.Context(), physical, nil))
		require.NoError(t, b.Declare(t.Context(), "orders", nil), topology)
		require.NoError(t, b.Publisher().Publish("orders", newMessages(1, "")...), topology)
		r.next().Ack()
	}
}

func clusterTopics(t *testing.T) map[string]sarama.TopicDetail {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin(testenv.Kafka(t), conf)
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	topics, err := admin.ListTopics()
	require.NoError(t, err)
	return topics
}
