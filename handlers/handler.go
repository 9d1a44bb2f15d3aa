package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Handler is a transactional handler. It does all its work through tx and returns a result that is
// stored as JSON with the key (nil for none), at most 64 KiB of it. It is called with a copy of the message and a fresh transaction for each
// attempt; ctx ends at the binding's timeout. An error rolls everything back; its kind decides what follows (see Permanent, RetryAfter).
type Handler func(ctx context.Context, tx Tx, msg *message.Message) (result any, err error)

// JSON makes a Handler from a function over a typed payload. A payload that is not JSON of that type, or has
// unknown fields after it, is a permanent failure "payload-not-json".
func JSON[P any](handle func(ctx context.Context, tx Tx, payload P) (any, error)) Handler {
	return func(ctx context.Context, tx Tx, msg *message.Message) (any, error) {
		payload, err := Decode[P](msg)
		if err != nil {
			return nil, err
		}
		return handle(ctx, tx, payload)
	}
}

// Decode reads a message's payload as JSON of type P, or returns the permanent failure "payload-not-json". Its text has no payload.
func Decode[P any](msg *message.Message) (P, error) {
	var payload P
	dec := json.NewDecoder(bytes.NewReader(msg.Payload))
	if err := dec.Decode(&payload); err != nil {
		return payload, Permanent("payload-not-json", describe(err))
	}
	if dec.More() {
		return payload, Permanent("payload-not-json", "more than one JSON value")
	}
	return payload, nil
}

// External is a handler whose effect cannot be rolled back.
type External struct {
	// Call has the outside effect. key is for the provider to deduplicate by; it is the same on every attempt. Return Unknown(err) when the outcome is not
	// known, Permanent for a refusal, any other error where surely nothing happened. The result is stored as JSON. ctx ends when
	// the lease is lost.
	Call func(ctx context.Context, msg *message.Message, key Key) (result any, err error)
	// Record, where set, writes the rows and messages that follow from Call's result, in the transaction that completes the key.
	Record func(ctx context.Context, tx Tx, msg *message.Message, result json.RawMessage) error
	// Probe asks the provider for the outcome of an earlier Call: known is false where it never had its effect. Needed for the policy UnknownProbe.
	Probe func(ctx context.Context, msg *message.Message, key Key) (result any, known bool, err error)
	// Unknown is the policy unless the configuration says otherwise. Defaults to UnknownPark.
	Unknown UnknownPolicy
	// Window is for how long the provider deduplicates (UnknownRetry): an older attempt is parked instead. Zero is no bound.
	Window time.Duration
	// Fence, where set, is why a call that is made twice cannot have its effect twice, whoever makes it and when, within Window; it is printed by
	// "oncemill guarantees". Leave it empty for a provider whose word is all there is.
	Fence string
	// Outbox, where set, is where Call has committed outgoing messages together with its effect. The application runs a relay for it.
	Outbox outbox.Source
}

// UnknownPolicy decides about a call whose outcome is not known.
type UnknownPolicy string

// Policies for unknown outcomes.
const (
	UnknownPark  UnknownPolicy = "park"  // in doubt: a person decides
	UnknownRetry UnknownPolicy = "retry" // call again: the provider deduplicates by the key
	UnknownProbe UnknownPolicy = "probe" // ask the provider
)

// Key is the identity for a provider: a function of scope and idempotency key, the same on every attempt.
type Key struct {
	scope, key string
	sub        []string
}

// NewKey derives the key of a message; the engine does it.
func NewKey(scope, key string) Key { return Key{scope: scope, key: key} }

// String returns the key as a UUID.
func (k Key) String() string { return envelope.Downstream(k.scope, k.key, k.sub...) }

// Message returns the scope and the idempotency key of the message.
func (k Key) Message() (scope, key string) { return k.scope, k.key }

// Sub returns the identity of one of several calls for one message, such as "capture".
func (k Key) Sub(name string) Key {
	return Key{scope: k.scope, key: k.key, sub: append(append([]string(nil), k.sub...), name)}
}
