package rabbitbroker_test

import (
	"net/http"
	"net/url"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// What Declare makes survives a restart, is of the configured type, and has no limit that loses messages.
func TestDeclaredTopology(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	topic := testenv.Name(t, "made")
	quorum := open(t, config(server.URL, rabbitbroker.Quorum))
	require.NoError(t, quorum.Declare(t.Context(), topic, []broker.Subscription{
		{Topic: topic, Group: "plain"}, {Topic: topic, Group: "ordered", Ordered: true},
	}))
	eventually(t, func() error {
		_, err := channel(t, server.URL).QueueDeclarePassive(topic+":ordered", true, false, false, false, nil)
		return err
	})
	plain, ordered := queue(t, server, topic+":plain"), queue(t, server, topic+":ordered")
	require.Equal(t, "quorum", plain.Type)
	require.True(t, plain.Durable)
	require.Equal(t, map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 1e6}, plain.Arguments)
	require.Equal(t, true, ordered.Arguments["x-single-active-consumer"])

	other := topic + ".classic"
	classic := open(t, config(server.URL, rabbitbroker.Classic))
	declare(t, classic, other, "g")
	q := queue(t, server, other+":g")
	require.Equal(t, "classic", q.Type)
	require.True(t, q.Durable)
}

// The queue that a company already has: published to and consumed by its own name, as its operators made it.
func TestMappedQueue(t *testing.T) {
	t.Parallel()
	for _, topology := range []string{rabbitbroker.Verify, rabbitbroker.Off, rabbitbroker.Declare} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			server := testenv.RabbitMQ(t)
			ch := channel(t, server.URL)
			_, err := ch.QueueDeclare("payments.queue", true, false, false, false, nil)
			require.NoError(t, err)
			nameless := ""
			cfg := config(server.URL, rabbitbroker.Classic)
			cfg.Topology = topology
			cfg.Topics = map[string]rabbitbroker.Topic{
				"payments.requested": {Exchange: &nameless, Queues: map[string]string{"payments": "payments.queue"}},
			}
			b := open(t, cfg)
			declare(t, b, "payments.requested", "payments")
			msg := newMessage("p")
			require.NoError(t, b.Publisher().Publish("payments.requested", msg))
			require.NoError(t, ch.PublishWithContext(t.Context(), "", "payments.queue", true, false, amqp.Publishing{Body: []byte("foreign")}))
			_, got := subscribe(t, b, broker.Subscription{Topic: "payments.requested", Group: "payments"})
			ours, theirs := next(t, got), next(t, got)
			require.True(t, msg.Equals(ours))
			require.Equal(t, "foreign", string(theirs.Payload))
			require.True(t, ours.Ack())
			require.True(t, theirs.Ack())
			if topology != rabbitbroker.Off {
				err := b.Declare(t.Context(), "payments.requested", []broker.Subscription{{Group: "other"}})
				require.Error(t, err, "the default exchange cannot reach a second queue, and operators made none")
			}
		})
	}
}

// A direct exchange with a routing key, shared with messages that are not ours.
func TestMappedExchange(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	name := "company.events"
	cfg := config(server.URL, rabbitbroker.Quorum)
	cfg.Topics = map[string]rabbitbroker.Topic{"orders": {Exchange: &name, ExchangeType: "topic", RoutingKey: "orders.created"}}
	b := open(t, cfg)
	declare(t, b, "orders", "g")
	ch := channel(t, server.URL)
	require.NoError(t, ch.PublishWithContext(t.Context(), name, "orders.deleted", false, false, amqp.Publishing{Body: []byte("not ours")}))
	require.NoError(t, ch.PublishWithContext(t.Context(), name, "orders.created", true, false, amqp.Publishing{Body: []byte("foreign")}))
	_, got := subscribe(t, b, broker.Subscription{Topic: "orders", Group: "g"})
	msg := next(t, got)
	require.Equal(t, "foreign", string(msg.Payload))
	require.True(t, msg.Ack())
	require.NoError(t, b.Publisher().Publish("orders", newMessage("ours")))
	require.Equal(t, "ours", string(next(t, got).Payload))
}

// Where operators own the topology nothing is made, and what is missing is named at once.
func TestOperatorsOwnTopology(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	topic := testenv.Name(t, "owned")
	groups := []broker.Subscription{{Topic: topic, Group: "g"}}
	for _, topology := range []string{rabbitbroker.Verify, rabbitbroker.Off} {
		cfg := config(server.URL, rabbitbroker.Quorum)
		cfg.Topology = topology
		b := open(t, cfg)
		if topology == rabbitbroker.Verify {
			require.ErrorContains(t, b.Declare(t.Context(), topic, groups), "exchange")
		} else {
			require.NoError(t, b.Declare(t.Context(), topic, groups))
		}
		require.Error(t, b.Publisher().Publish(topic, newMessage("p")))
		sub, err := b.Subscriber(groups[0])
		require.NoError(t, err)
		_, err = sub.Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, topic+":g")
		require.Error(t, sub.Consuming())
		require.NoError(t, b.Close())
	}
	conn, err := amqp.Dial(server.URL)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclarePassive(topic+":g", true, false, false, false, nil)
	require.Error(t, err, "a queue was made")
}

// A user without the right to configure anything works with what operators made, and is told what it may not make.
func TestUserWithoutConfigureRight(t *testing.T) {
	t.Parallel()
	server := testenv.RabbitMQ(t)
	topic, missing := testenv.Name(t, "owned"), testenv.Name(t, "missing")
	groups := []broker.Subscription{{Topic: topic, Group: "g"}, {Topic: topic, Group: "ordered", Ordered: true}}
	operators := open(t, config(server.URL, rabbitbroker.Quorum))
	require.NoError(t, operators.Declare(t.Context(), topic, groups))

	user := testenv.Name(t, "user")
	setUser(t, server, user, shopPassword)
	defer api(t, server, http.MethodDelete, "/users/"+user, nil, nil)
	grant(t, server, server.VHost, user, rights{Configure: "^$", Write: ".*", Read: ".*"})
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(user, shopPassword)

	for _, topology := range []string{rabbitbroker.Verify, rabbitbroker.Off} {
		cfg := config(u.String(), rabbitbroker.Quorum)
		cfg.Topology = topology
		b := open(t, cfg)
		require.NoError(t, b.Declare(t.Context(), topic, groups), topology)
		for _, sub := range groups {
			_, got := subscribe(t, b, sub)
			msg := newMessage(topology)
			require.NoError(t, b.Publisher().Publish(topic, msg), topology)
			for received := ""; received != msg.UUID; { // the other group's copies come, too
				m := next(t, got)
				received = m.UUID
				require.True(t, m.Ack())
			}
		}
		if topology == rabbitbroker.Verify {
			require.ErrorContains(t, b.Declare(t.Context(), missing, nil), "have it made")
		}
		require.NoError(t, b.Close())
	}
	err = open(t, config(u.String(), rabbitbroker.Quorum)).Declare(t.Context(), missing, []broker.Subscription{{Topic: missing, Group: "g"}})
	require.ErrorContains(t, err, "set topology to verify, or grant configure")
	require.NotContains(t, err.Error(), "s3cr3t")
}
