package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Handler does a message's work through tx. It gets a copy of the message and a fresh transaction for each attempt.
// What it returns is stored as JSON with the key; nil stores nothing.
type Handler func(ctx context.Context, tx *Tx, msg *message.Message) (result any, err error)

// External is a handler whose effect cannot be rolled back: Call runs outside any transaction under a lease, Record in the
// transaction that completes the key.
type External struct {
	Call   func(ctx context.Context, msg *message.Message, scope, key string) (any, error)
	Record func(ctx context.Context, tx *Tx, msg *message.Message, result json.RawMessage) error
	Probe  func(ctx context.Context, msg *message.Message, scope, key string) (result any, known bool, err error)
	// Unknown decides about calls whose outcome is not known: "park", "retry" or "probe".
	Unknown UnknownPolicy
	// Window bounds UnknownRetry by the age of the first attempt; 0 is no bound.
	Window time.Duration
}

// UnknownPolicy decides about a call whose outcome is not known.
type UnknownPolicy string

// Policies for unknown outcomes.
const (
	UnknownPark  UnknownPolicy = "park"
	UnknownRetry UnknownPolicy = "retry"
	UnknownProbe UnknownPolicy = "probe"
)

// Retry says when a transient failure is tried again.
type Retry struct {
	// Attempts is how many failures make a dead letter. Defaults to 10.
	Attempts int
	// InProcess is for how long a message is tried again in the process before it is parked. Defaults to 1s; negative parks at once.
	InProcess time.Duration
	// First and Max bound the growing wait of a parked message. Default to 5s and 1h.
	First, Max time.Duration
	// Contention is for how long deadlocks, serialization failures and rivals' locks are retried
	// without counting an attempt, before the message is parked. Defaults to 10s.
	Contention time.Duration
}

// Binding is everything an Engine must know about one handler.
type Binding struct {
	// Scope keeps the keys of bindings apart; Topic is the logical topic.
	Scope string
	Topic string
	// Publish is the topic of the messages that a router's HandlerFunc returns. Defaults to the router's publish topic, which
	// is known while a message comes through the router, but not when it comes from parking: name it for such a handler. Router does.
	Publish string
	// Exactly one of Handler and External is set (Middleware sets Handler itself).
	Handler  Handler
	External *External

	// Key says where the idempotency key comes from, Missing what a message without one means.
	Key     envelope.KeySource
	Missing envelope.MissingKey
	// Fingerprint tells two payloads of one key apart.
	Fingerprint envelope.Fingerprint
	MaxPayload  int

	// Retention is how long keys are kept. Defaults to 7 days.
	Retention time.Duration
	// Concurrency bounds the handlers that run at once. Defaults to 8.
	Concurrency int
	// Timeout ends a handler's context; a handler that does not return then is abandoned. Defaults to 30s.
	Timeout time.Duration
	// Isolation and LockTimeout are keystore.TxOptions.
	Isolation   string
	LockTimeout time.Duration
	Retry       Retry
	// Lease is how long an external call holds its key without renewal. Defaults to 30s.
	Lease time.Duration
	// CrashLimit is how often a message may be under way when its process dies before it is a dead letter. Defaults to 5.
	CrashLimit int
	// Hold keeps later messages of an ordering key behind its dead letter or in-doubt message until a person decides.
	Hold bool
	// Resend keeps the messages that a key's completion published, and publishes them again for each duplicate that arrives before the key's retention is over:
	// "it was already done, here is the confirmation". They have the same identities, so a consumer that keeps its keys as long removes the copies.
	Resend bool
}

func (b Binding) withDefaults() Binding {
	setDefault(&b.Retention, 7*24*time.Hour)
	setDefault(&b.Concurrency, 8)
	setDefault(&b.Timeout, 30*time.Second)
	setDefault(&b.LockTimeout, 3*time.Second)
	setDefault(&b.Retry.Attempts, 10)
	setDefault(&b.Retry.InProcess, time.Second)
	setDefault(&b.Retry.First, 5*time.Second)
	setDefault(&b.Retry.Max, time.Hour)
	setDefault(&b.Retry.Contention, 10*time.Second)
	setDefault(&b.Lease, 30*time.Second)
	setDefault(&b.CrashLimit, 5)
	setDefault(&b.MaxPayload, envelope.DefaultMaxPayload)
	return b
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (b Binding) validate() error {
	switch {
	case b.Scope == "":
		return errors.New("idempotency: binding without a scope")
	case b.Handler != nil && b.External != nil:
		return errors.New("idempotency: binding " + b.Scope + " has two kinds of handler")
	case b.External != nil && b.External.Call == nil:
		return errors.New("idempotency: binding " + b.Scope + ": the external handler has no Call")
	case b.External != nil && !slices.Contains([]UnknownPolicy{"", UnknownPark, UnknownRetry, UnknownProbe}, b.External.Unknown):
		return fmt.Errorf("idempotency: binding %s: unknown_outcome %q is none of \"park\", \"retry\", \"probe\"", b.Scope, b.External.Unknown)
	case b.External != nil && b.External.Unknown == UnknownProbe && b.External.Probe == nil:
		return errors.New("idempotency: binding " + b.Scope + ": unknown_outcome is probe, but the handler has no Probe")
	}
	return nil
}
