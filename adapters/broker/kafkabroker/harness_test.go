package kafkabroker_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// TestMain starts the goroutine that the library's measurements share for the life of the process, so that it is no leak of a test.
func TestMain(m *testing.M) {
	metrics.NewMeter().Stop()
	os.Exit(m.Run())
}

// testConfig is the configuration of tests: as short a time-out of dead members as the server allows.
func testConfig(t testing.TB) kafkabroker.Config {
	return kafkabroker.Config{
		Brokers: testenv.Kafka(t), Version: "2.8.0", Topology: kafkabroker.TopologyDeclare, Partitions: 6, Replication: -1,
		Window: 256, OffsetsInterval: 250 * time.Millisecond, SessionTimeout: 6 * time.Second, SettleTimeout: 2 * time.Second,
	}
}

func testOptions(t testing.TB) broker.Options {
	return broker.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})), ClientName: "kafkabroker-test"}
}

func open(t testing.TB, conf kafkabroker.Config) *kafkabroker.Broker {
	t.Helper()
	b, err := kafkabroker.Open(t.Context(), conf, testOptions(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// line is the network of one replica; cut is what the death of its process does to it.
type line struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (l *line) dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		_ = conn.Close()
		return nil, errors.New("the line is cut")
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

func (l *line) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = false
}

// lines are the networks of the replicas of a test.
type lines struct {
	mu sync.Mutex
	of map[broker.Broker]*line
}

func (l *lines) open(t testing.TB) broker.Broker {
	t.Helper()
	own := &line{}
	conf := testConfig(t)
	conf.Dial = own.dial
	b, err := kafkabroker.Open(t.Context(), conf, testOptions(t))
	require.NoError(t, err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[b] = own
	return b
}

func (l *lines) crash(_ testing.TB, b broker.Broker) {
	l.mu.Lock()
	own := l.of[b]
	l.mu.Unlock()
	own.cut()
}

func newHarness(t testing.TB) brokertest.Harness {
	l := &lines{of: map[broker.Broker]*line{}}
	testenv.Kafka(t)
	return brokertest.Harness{
		Name: "kafka",
		Open: func(t testing.TB) broker.Broker { return l.open(t) },
		Foreign: func(t testing.TB, topic string, m brokertest.Foreign) {
			var headers []sarama.RecordHeader
			for name, value := range m.Headers {
				headers = append(headers, sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
			}
			produce(t, &sarama.ProducerMessage{Topic: topic, Headers: headers, Value: sarama.ByteEncoder(m.Payload)})
		},
		Crash:  l.crash,
		Remove: func(t testing.TB, topic string, _ []string) { removeTopic(t, topic) },
	}
}

// produce publishes records as any other program does.
func produce(t testing.TB, records ...*sarama.ProducerMessage) {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Producer.Return.Successes = true
	conf.Producer.Partitioner = sarama.NewMurmur2Partitioner
	producer, err := sarama.NewSyncProducer(testenv.Kafka(t), conf)
	require.NoError(t, err)
	defer func() { _ = producer.Close() }()
	for _, record := range records {
		_, _, err := producer.SendMessage(record)
		require.NoError(t, err)
	}
}

func admin(t testing.TB) sarama.ClusterAdmin {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	a, err := sarama.NewClusterAdmin(testenv.Kafka(t), conf)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func removeTopic(t testing.TB, topic string) {
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	a, err := sarama.NewClusterAdmin(testenv.Kafka(t), conf)
	if err != nil {
		return
	}
	defer func() { _ = a.Close() }()
	_ = a.DeleteTopic(topic)
}

func openQuickly(t testing.TB, conf kafkabroker.Config) (*kafkabroker.Broker, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	return kafkabroker.Open(ctx, conf, testOptions(t))
}
