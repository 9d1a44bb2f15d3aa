// Package envelope is the message contract: the names and limits of metadata, where
// an idempotency key comes from, the fingerprint of a payload, and the identities
// that are derived from a key. It is the same on every broker, is enforced when a
// message is published and again when it is received, and is a leaf: it imports
// nothing of ours.
package envelope

import (
	"fmt"
)

// Names of metadata that Oncemill gives a meaning.
const (
	// KeyHeader carries the idempotency key.
	KeyHeader = "idempotency-key"
	// OrderingKeyHeader carries the ordering key: messages that share one are handled in their order.
	OrderingKeyHeader = "ordering-key"
	// DeliverAtHeader delays a message that goes through the outbox (RFC 3339, with zone).
	DeliverAtHeader = "deliver-at"
	// ReservedPrefix begins the names that belong to Oncemill.
	ReservedPrefix = "oncemill-"
	// WatermillPrefix begins the names that belong to Watermill.
	WatermillPrefix = "_watermill"
)

// Limits of a message. They hold on every broker and store, so that switching one is only a flag.
const (
	MaxUUID           = 36
	MaxTopic          = 45
	MaxKey            = 255
	MaxMetadataName   = 255
	MaxMetadata       = 32 << 10 // names and values together, bytes
	DefaultMaxPayload = 1 << 20  // bytes
)

// Violation says which rule of the message contract a message breaks. It is permanent:
// sending the message again cannot mend it.
type Violation struct {
	// Rule is a short constant code, such as "key-too-long"; it is the reason of the dead letter.
	Rule string
	// Detail says what is wrong, with sizes and names but without payload or key.
	Detail string
}

func (v *Violation) Error() string { return fmt.Sprintf("message contract: %s: %s", v.Rule, v.Detail) }

// Permanent marks the violation as a failure that no retry mends.
func (v *Violation) Permanent() string { return v.Rule }
