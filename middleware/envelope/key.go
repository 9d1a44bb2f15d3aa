package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// KeySource reads the idempotency key of a message. found is false where the message has none; what
// that means is the binding's MissingKey policy. A *Violation says that the key can never be
// read. It must give the same answer for every delivery of one message, and is called concurrently.
type KeySource func(msg *message.Message, d Delivery) (key string, found bool, err error)

// MissingKey says what becomes of a message without a key.
type MissingKey string

// Policies for a missing key.
const (
	// MissingReject sends the message to the dead letters. It is the default.
	MissingReject MissingKey = "reject"
	// MissingDerive takes a hash of the payload (canonical where it is JSON) as the key. Two messages that
	// are meant to be two, with equal payloads, become one: for payloads that carry an identity of their own only.
	MissingDerive MissingKey = "derive"
	// MissingPass runs the message without deduplication.
	MissingPass MissingKey = "pass"
)

// ParseMissingKey returns the policy of that name; "" is MissingReject.
func ParseMissingKey(name string) (MissingKey, error) {
	switch m := MissingKey(name); m {
	case "":
		return MissingReject, nil
	case MissingReject, MissingDerive, MissingPass:
		return m, nil
	}
	return "", fmt.Errorf(`missing_key %q is none of "reject", "derive", "pass"`, name)
}

// KeyOrigin says how ExtractKey came by a key.
type KeyOrigin string

// Origins of a key.
const (
	// KeyGiven: the message carries the key.
	KeyGiven KeyOrigin = "given"
	// KeyDerived: the key is a hash of the payload.
	KeyDerived KeyOrigin = "derived"
	// KeyNone: there is none, and the message runs without deduplication.
	KeyNone KeyOrigin = "none"
)

// ExtractKey returns the key of a delivered message, valid by ValidateKey, and where it came
// from. A key that is absent, empty or only white space is missing (no two messages ever share it), and missing
// decides. The error is a *Violation where the message can never have a key, else what source returned, wrapped.
func ExtractKey(msg *message.Message, d Delivery, source KeySource, missing MissingKey) (string, KeyOrigin, error) {
	key, found, err := source(msg, d)
	if err != nil {
		if v := (*Violation)(nil); errors.As(err, &v) {
			return "", KeyNone, v
		}
		return "", KeyNone, fmt.Errorf("reading the idempotency key: %w", err)
	}
	if found && !isBlank(key) {
		if err := ValidateKey(key); err != nil {
			return "", KeyNone, err
		}
		return key, KeyGiven, nil
	}
	return missingKey(msg, missing)
}

func missingKey(msg *message.Message, missing MissingKey) (string, KeyOrigin, error) {
	switch missing {
	case MissingPass:
		return "", KeyNone, nil
	case MissingDerive:
		// All empty payloads would be one message.
		if len(msg.Payload) > 0 {
			return derivedKey(msg.Payload), KeyDerived, nil
		}
		return "", KeyNone, &Violation{RuleKeyMissing, "the message has no idempotency key, and no payload to derive one from"}
	}
	return "", KeyNone, &Violation{RuleKeyMissing, "the message has no idempotency key"}
}

func derivedKey(payload []byte) string {
	sum := sha256.Sum256(payload)
	kind := "payload"
	if canonical, err := canonicalJSON(payload); err == nil {
		sum, kind = sha256.Sum256(canonical), "json"
	}
	return "derived:" + kind + ":" + hex.EncodeToString(sum[:])
}
