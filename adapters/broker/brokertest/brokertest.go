// Package brokertest is the conformance suite of broker adapters. An adapter's test builds a Harness and calls
// Run, and Watermill for Watermill's own universal tests; nothing in the suite is optional but what a broker's Capabilities exclude.
package brokertest

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/broker"
)

// Harness gives the suite one broker server. Its functions are called from several tests at once.
type Harness struct {
	// Name is what the adapter writes into envelope.Delivery.Broker.
	Name string

	// Open connects a new replica: a broker with connections of its own and the default MaxPayload. The suite closes it.
	Open func(t testing.TB) broker.Broker

	// Foreign publishes a message to the topic with the broker's plain client library, as a program would that knows nothing
	// of Watermill: no UUID header, no headers but those given. The topic was declared before.
	Foreign func(t testing.TB, topic string, m Foreign)

	// Crash ends the replica's connections as the death of its process would: nothing is
	// settled or handed back by the client. The broker b is only closed afterwards. Nil uses Close.
	Crash func(t testing.TB, b broker.Broker)

	// Remove deletes what Declare made. Nil leaves it behind.
	Remove func(t testing.TB, topic string, groups []string)

	// AlwaysIdentified says that the protocol gives every message an identity: Foreign makes one up where it is given none.
	AlwaysIdentified bool

	// FewMessages makes Watermill's suite send fewer messages, for a server that takes long for each.
	FewMessages bool

	// Leaks excuses goroutines of the harness itself, such as a proxy's, from the search for those that outlive a broker.
	Leaks []goleak.Option

	// Patience bounds every wait for something that must happen: a redelivery after a crash, a
	// rebalance. Defaults to 30 seconds.
	Patience time.Duration
}

// Foreign is a message of a producer that knows nothing of Watermill.
type Foreign struct {
	// MessageID is the identity that the broker's protocol itself carries (AMQP message-id, Nats-Msg-Id); adapters
	// of brokers without one ignore it. Empty: none is sent.
	MessageID string
	Headers   map[string]string
	Payload   []byte
}

type test struct {
	name string
	run  func(k *kit)
}

// suite is the closed list of tests, by topic.
func suite() []test {
	var all []test
	for _, topic := range [][]test{
		roundtripTests, identityTests, contractTests, batchTests, groupTests, inFlightTests,
		redeliveryTests, drainTests, lifecycleTests, caughtUpTests, orderingTests,
	} {
		all = append(all, topic...)
	}
	return all
}

// Run runs the suite. newHarness is called once for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Run("Leak", func(t *testing.T) { testLeak(newKit(t, newHarness(t))) })
	for _, tt := range suite() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(newKit(t, newHarness(t)))
		})
	}
}

func (h Harness) patience() time.Duration {
	if h.Patience > 0 {
		return h.Patience
	}
	return 30 * time.Second
}

func (h Harness) crash(t testing.TB, b broker.Broker) {
	if h.Crash != nil {
		h.Crash(t, b)
	}
	_ = b.Close()
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}
