// Package broker is the contract of a broker adapter: a Watermill publisher and
// subscriber with many messages in flight, acks in any order, a publish that returns only when the
// message is durable and routed, and a stop that loses and doubles nothing. Package
// brokertest is its conformance suite.
package broker

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/transact"
)

// Factory makes the broker of one name.
type Factory struct {
	// Name is what --broker takes: lower case, letters only.
	Name string
	// Keys is what --keys takes for keys in the broker's own transactions; empty where its brokers are not Transactional.
	Keys string
	// Open connects. decode fills a pointer to the adapter's own configuration struct, strictly (unknown names
	// are errors); the struct holds the defaults before. Open returns an error that says what to do when the broker cannot be
	// reached within ctx; it never retries for ever.
	Open func(ctx context.Context, decode func(any) error, opts Options) (Broker, error)
	// Check validates the adapter's configuration without any connection.
	Check func(decode func(any) error) error
	// Capabilities is what the broker promises where it is well configured. An open Broker says what it promises as it is.
	Capabilities Capabilities
}

// Options are what every adapter gets from the application.
type Options struct {
	Logger *slog.Logger
	// DataDir is the folder for adapters that keep files; it exists.
	DataDir string
	// ClientName names this process to the broker.
	ClientName string
	// MaxPayload is the largest payload in bytes.
	MaxPayload int
	// Dial, where set, makes the connections in place of the adapter, for who wants to break them; TLS goes on top. The brokers sql and sqs dial for themselves.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Broker is one open connection to a broker. It reconnects by itself, with
// backoff, for as long as it is open. Safe for concurrent use.
type Broker interface {
	// Capabilities says what this broker, as configured, promises.
	Capabilities() Capabilities

	// Publisher returns the broker's publisher. The caller does not close it; Close of the broker does.
	Publisher() Publisher

	// Subscriber makes a subscriber for one binding. Nothing is consumed before its Subscribe.
	Subscriber(sub Subscription) (Subscriber, error)

	// Declare makes what the topic needs (queue, topic, stream) for publishing and for these groups, durable and
	// the same on every start, so that what is published before the first consumer runs is kept.
	// Where the configuration says that operators own the topology it verifies, or does nothing.
	Declare(ctx context.Context, topic string, groups []Subscription) error

	// Ping returns nil when the broker answers now.
	Ping(ctx context.Context) error

	// Close closes subscribers (handing back what is in flight), then publisher and connections. Safe to call twice.
	Close() error
}

// Publisher publishes with confirmation. Publish (Watermill's) is PublishBatch with the
// errors joined; publishing nothing is nil. Both are safe for concurrent use, validate each message by the envelope
// contract, and never change the caller's message.
type Publisher interface {
	message.Publisher
	outbox.Publisher
}

// Subscription describes what one binding consumes.
type Subscription struct {
	// Topic is the logical topic.
	Topic string
	// Group names the consumer: queue, consumer group or durable derive from it. Replicas of one binding share it; each
	// group gets every message of the topic. [A-Za-z0-9._-], at most 100 characters.
	Group string
	// InFlight bounds the messages delivered and not yet settled. Defaults to 256.
	InFlight int
	// Ordered asks for one active consumer for each shard of the topic, so that messages of one ordering key reach
	// one replica at a time, in the order in which they were published.
	Ordered bool
}

// Subscriber delivers the messages of one binding.
//
// Each delivered message carries an envelope.Delivery in its context. That context is not the one
// given to Subscribe and is not cancelled by a stop: it ends when the message's settlement has reached the
// broker, when the delivery was taken away (lost channel, revoked partition), or when a drain's context ends.
//
// A message is settled by Ack or Nack. Acks are applied in any order. A nack is a redelivery after a short delay, to any
// replica; it never loops hot and counts no attempt.
type Subscriber interface {
	// Subscribe starts delivering; it may be called once. The end of ctx is a Drain without a bound. The channel is
	// closed when the subscriber has stopped.
	message.Subscriber

	// Drain stops taking messages, gives back those not yet handed over, waits until
	// every delivered message is settled and its settlement has reached the broker, then closes the channel. When ctx ends before, what
	// is left is handed back and ctx's error returned. Safe to call twice and before Subscribe.
	Drain(ctx context.Context) error

	// Consuming returns nil while messages would be delivered now, else why not. It is what /readyz asks.
	Consuming() error

	// CaughtUp is closed when everything that stood in the queue at Subscribe has been
	// delivered and settled, by this or another replica.
	CaughtUp() <-chan struct{}
}

// Ordering says which order an adapter keeps.
type Ordering string

// Orders an adapter may promise.
const (
	// OrderNone keeps no order over replicas.
	OrderNone Ordering = "none"
	// OrderByKey keeps the order of messages with one ordering key, over replicas, for subscriptions with Ordered.
	OrderByKey Ordering = "ordering-key"
)

// Capabilities is what an adapter promises, as data: the conformance suite tests both sides of each,
// the start-up gate decides by them, and the guarantees are printed from them.
type Capabilities struct {
	Ordering Ordering
	// OrderedBatch reports that within one PublishBatch a refused message stops those of its ordering key that follow it.
	OrderedBatch bool
	// LongestRedelivery bounds the time between the first and the last delivery of a message; 0 says there is no bound.
	LongestRedelivery time.Duration
	// RedeliveryReason says in a few words why, for people: "the topic's retention.ms plus a segment".
	RedeliveryReason string
	// DeliveryCount reports that redeliveries are recognised.
	DeliveryCount bool
	// DedupeWindow is the broker's own window for producers' double sends; 0 where there is none.
	DedupeWindow time.Duration
	// MaxPayload is the largest payload that passes whatever its bytes and its metadata are; of larger ones some are refused with
	// outbox.ErrUnpublishable. 0: every message of the contract passes.
	MaxPayload int
	// Durable reports that a confirmed message survives a crash of the broker's machine.
	Durable bool
	// Caveats are sentences for the printed guarantees: what the configuration weakens.
	Caveats []string
	// Transactions is nil where the broker is not Transactional; else sentences for the printed guarantees: what bounds the promise of its transactions.
	Transactions []string
}

// Transactional is a broker whose own transactions can hold the keys of a binding whose handler turns messages into messages.
type Transactional interface {
	// Transactions makes the source of one binding; its keys are kept for retention. Nothing is consumed before its Start.
	Transactions(sub Subscription, retention time.Duration) (transact.Source, error)
	// DeclareKeys makes what keeps the keys of the subscription, or verifies it. The topic must be declared before.
	DeclareKeys(ctx context.Context, sub Subscription) error
	// Remembers reports whether keys of the subscription are kept: it ran before.
	Remembers(ctx context.Context, sub Subscription) (bool, error)
}
