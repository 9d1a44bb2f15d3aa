// Package faultpoint names the steps of a message's way at which a test may break it.
//
// The list is closed. Each step has one place in the code, which calls the Hook that it was given: an option of the engine, of a
// flow and of the relay, nil unless a test or "oncemill prove" sets it. No environment variable, flag or setting of a running
// application does. A nil Hook costs one comparison.
package faultpoint

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Point is one step.
type Point string

// The steps of a message that is handled, in their order. Those of a transactional handler:
const (
	// Received: the broker has delivered the message; nothing is known of it yet.
	Received Point = "received"
	// BeforeClaim: no transaction is open yet.
	BeforeClaim Point = "before-claim"
	// AfterClaim: the key is inserted, in a transaction that is open.
	AfterClaim Point = "after-claim"
	// BeforeStatement and AfterStatement: once for each statement of the handler.
	BeforeStatement Point = "before-statement"
	AfterStatement  Point = "after-statement"
	// BeforeCommit: the handler has returned; result and outgoing messages are not written yet.
	BeforeCommit Point = "before-commit"
	// Committed: the commit is durable; an error here is an answer that was lost.
	Committed Point = "committed"
	// BeforeAck: everything is settled, and the broker does not know it yet.
	BeforeAck Point = "before-ack"
)

// The further steps of an external handler.
const (
	// LeaseAcquired: the key is in progress; an error here is an answer that was lost.
	LeaseAcquired Point = "lease-acquired"
	// BeforeRenewal comes by the clock, while Call runs. keystore.ErrLeaseLost here is a lease that was lost.
	BeforeRenewal Point = "before-renewal"
	// Answering: the outside effect has happened, and Call has not returned yet. An error here is Call's own.
	Answering Point = "answering"
	// Called: the outside effect has happened, and nothing says so yet.
	Called Point = "called"
)

// The steps of a message that is not handled.
const (
	// BeforeParking: the failure is counted; the message is not parked yet.
	BeforeParking Point = "before-parking"
	// Parked: the parked row is durable.
	Parked Point = "parked"
	// BeforeDeadLetter: nothing says yet that the message failed for good.
	BeforeDeadLetter Point = "before-dead-letter"
	// DeadLetterWritten: the dead letter is durable, and the broker does not know it yet.
	DeadLetterWritten Point = "dead-letter-written"
)

// The steps of the relay. An error ends the relay there and then, as a crash would.
const (
	// OutboxRead: records are read, none is published.
	OutboxRead Point = "outbox-read"
	// PublishedBeforeMarked: the broker has them; the outbox does not say so yet.
	PublishedBeforeMarked Point = "published-before-marked"
	// Marked: the outbox says so.
	Marked Point = "marked"
)

var (
	engine = []Point{
		Received, BeforeClaim, LeaseAcquired, AfterClaim, BeforeStatement, AfterStatement, BeforeRenewal, Answering, Called, BeforeCommit, Committed,
		BeforeParking, Parked, BeforeDeadLetter, DeadLetterWritten, BeforeAck,
	}
	relay = []Point{OutboxRead, PublishedBeforeMarked, Marked}
)

// Engine returns the steps of a message that is handled, in an order in which they can come.
func Engine() []Point { return slices.Clone(engine) }

// Relay returns the steps of the relay, in their order.
func Relay() []Point { return slices.Clone(relay) }

// Hook is called at each step; its error is what the step would have returned. It may also panic, block or end the process. It is
// called concurrently.
type Hook func(ctx context.Context, at Point) error

// Subject is the message on whose way a step lies.
type Subject struct {
	Scope string
	// Key is empty where the message has none, or none that could be read.
	Key     string
	Message *message.Message
}

type subjectKey struct{}

// About returns a context that tells the hook whose step it is; without a hook it is ctx.
func (h Hook) About(ctx context.Context, s Subject) context.Context {
	if h == nil {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, s)
}

// SubjectOf returns whose step ctx belongs to. Those of the relay, which works on batches, belong to nobody.
func SubjectOf(ctx context.Context) (Subject, bool) {
	s, ok := ctx.Value(subjectKey{}).(Subject)
	return s, ok
}

// At calls the hook, where there is one.
func (h Hook) At(ctx context.Context, at Point) error {
	if h == nil {
		return nil
	}
	return h(ctx, at)
}
