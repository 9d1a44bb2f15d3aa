package natsbroker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/brokertest"
	"github.com/oncemill/oncemill/internal/testenv"
)

func TestEmbeddedConformance(t *testing.T) { brokertest.Run(t, embeddedHarness) }
func TestEmbeddedWatermill(t *testing.T)   { brokertest.Watermill(t, embeddedHarness) }
func BenchmarkEmbedded(b *testing.B)       { brokertest.Benchmark(b, embeddedIn(b)) }
func TestExternalConformance(t *testing.T) { brokertest.Run(t, externalHarness) }
func TestExternalWatermill(t *testing.T)   { brokertest.Watermill(t, externalHarness) }
func BenchmarkExternal(b *testing.B)       { brokertest.Benchmark(b, externalAt(b)) }

func embeddedHarness(t *testing.T) brokertest.Harness { return embeddedIn(t) }
func externalHarness(t *testing.T) brokertest.Harness { return externalAt(t) }

// embeddedIn gives each test a folder of its own; whichever replica opens first serves.
func embeddedIn(t testing.TB) brokertest.Harness {
	dir := t.TempDir()
	return brokertest.Harness{
		Name:    "embedded",
		Open:    func(t testing.TB) broker.Broker { return openTest(t, EmbeddedFactory(), nil, dir) },
		Foreign: foreign(func() string { return "nats://" + readAddress(dir).Token + "@" + readAddress(dir).Addr }),
		Crash:   cut,
	}
}

func externalAt(t testing.TB) brokertest.Harness {
	url := testenv.NATS(t)
	configure := func(c *Config) {
		c.URL, c.AckWait = url, 4*time.Second // a crash's redelivery is waited for
	}
	return brokertest.Harness{
		Name:    "nats",
		Open:    func(t testing.TB) broker.Broker { return openTest(t, Factory(), configure, t.TempDir()) },
		Foreign: foreign(func() string { return url }),
		Crash:   cut,
		Remove: func(t testing.TB, topic string, _ []string) {
			nc, err := nats.Connect(url)
			require.NoError(t, err)
			defer nc.Close()
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			err = js.DeleteStream(context.WithoutCancel(t.Context()), assetName(topic))
			if !errors.Is(err, jetstream.ErrStreamNotFound) { // it may be removed twice
				require.NoError(t, err)
			}
		},
	}
}

// openTest opens a broker whose logs go to the test.
func openTest(t testing.TB, f broker.Factory, configure func(*Config), dir string) broker.Broker {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	decode := func(into any) error {
		if cfg, ok := into.(*Config); ok && configure != nil {
			configure(cfg)
		}
		return nil
	}
	b, err := f.Open(ctx, decode, broker.Options{Logger: testLogger(t), DataDir: dir, ClientName: "test"})
	require.NoError(t, err)
	return b
}

func testLogger(testing.TB) *slog.Logger { return slog.New(slog.DiscardHandler) }

// cut ends a replica's connection for good, as its process's death would. An embedded server goes on.
func cut(_ testing.TB, b broker.Broker) { b.(*Broker).link.nc.Close() }

// foreign publishes as a program does that knows nothing of Watermill.
func foreign(url func() string) func(testing.TB, string, brokertest.Foreign) {
	return func(t testing.TB, topic string, m brokertest.Foreign) {
		nc, err := nats.Connect(url())
		require.NoError(t, err)
		defer nc.Close()
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		msg := &nats.Msg{Subject: topic, Data: m.Payload, Header: nats.Header{}}
		for name, value := range m.Headers {
			msg.Header[name] = []string{value}
		}
		if m.MessageID != "" {
			msg.Header.Set(nats.MsgIdHdr, m.MessageID)
		}
		_, err = js.PublishMsg(t.Context(), msg)
		require.NoError(t, err)
	}
}
