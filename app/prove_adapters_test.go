package app

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// What a trial needs of adapters: connections that it can break, and topics that it can take back.
func TestAdaptersDialAndRemoveForATrial(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return nil },
		"rabbitmq": func(t *testing.T) []string { return []string{"BROKERS__RABBITMQ__URL=" + testenv.RabbitMQ(t).URL} },
		"kafka": func(t *testing.T) []string {
			return []string{"BROKERS__KAFKA__BROKERS=" + strings.Join(testenv.Kafka(t), ",")}
		},
		"nats":     func(t *testing.T) []string { return []string{"BROKERS__NATS__URL=" + testenv.NATS(t)} },
		"postgres": func(t *testing.T) []string { return []string{"DATABASES__POSTGRES__DSN=" + testenv.Postgres(t).DSN} },
		"mysql":    func(t *testing.T) []string { return []string{"DATABASES__MYSQL__DSN=" + testenv.MySQL(t).DSN} },
		"redis":    func(t *testing.T) []string { return []string{"DATABASES__REDIS__URL=" + testenv.Redis(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			isBroker := false
			for _, b := range Builtin().Brokers {
				isBroker = isBroker || b.Name == name
			}
			switch {
			case isBroker:
				c := newConsole(t, Builtin(), append(env(t), "BROKER="+name)...)
				a, dialed := c.dials()
				require.NotZero(t, dialed.broker.Load())
				if name != "embedded" {
					c.removes(a)
				}
			case name == "redis":
				c := newConsole(t, Builtin(), append(env(t), "KEYS="+name)...)
				_, dialed := c.dials()
				require.NotZero(t, dialed.keys.Load())
			default:
				c := newConsole(t, Builtin(), append(env(t), "DATABASE="+name)...)
				_, dialed := c.dials()
				require.NotZero(t, dialed.database.Load())
			}
		})
	}
}

// dialed counts the connections that the application was asked to make.
type dialed struct{ database, broker, keys atomic.Int64 }

// dials opens the application with probes that make its connections.
func (c *console) dials() (*App, *dialed) {
	c.t.Helper()
	a := c.application()
	n := &dialed{}
	counting := func(count *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			count.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}
	a.probes = probes{toDatabase: counting(&n.database), toBroker: counting(&n.broker), toKeys: counting(&n.keys)}
	require.NoError(c.t, a.Open(c.t.Context()))
	return a, n
}

// application makes the application of the console; it is closed at the end of the test.
func (c *console) application() *App {
	c.t.Helper()
	a, err := (&cli{set: c.set, env: c.env, errs: &buffer{}, flags: map[string]string{}}).app()
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, a.Close()) })
	return a
}

// removes declares a topic, removes it, and looks whether it is gone.
func (c *console) removes(a *App) {
	topic := testenv.Name(c.t, "")
	groups := []broker.Subscription{{Topic: topic, Group: topic + "-group"}}
	require.NoError(c.t, a.broker.Declare(c.t.Context(), topic, groups))
	verify := c.with("BROKERS__" + strings.ToUpper(a.cfg.Broker) + "__TOPOLOGY=verify").application()
	require.NoError(c.t, verify.Open(c.t.Context()))
	require.NoError(c.t, verify.broker.Declare(c.t.Context(), topic, groups))

	require.NoError(c.t, a.broker.(remover).Remove(c.t.Context(), topic, groups))
	testenv.Eventually(c.t, time.Minute, func() error {
		again := c.with("BROKERS__" + strings.ToUpper(a.cfg.Broker) + "__TOPOLOGY=verify").application()
		require.NoError(c.t, again.Open(c.t.Context()))
		if again.broker.Declare(c.t.Context(), topic, groups) == nil {
			return errors.New("the topic is still there")
		}
		return nil
	})
}
