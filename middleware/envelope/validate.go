package envelope

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Rules of the contract, as they stand in a Violation and in the reason of a dead letter. Those of
// keys begin "key-", those of ordering keys "ordering-key-", with the same endings.
const (
	RuleKeyMissing     = "key-missing"
	RuleKeyEmpty       = "key-empty"
	RuleKeyTooLong     = "key-too-long"
	RuleKeyInvalidUTF8 = "key-invalid-utf8"
	RuleKeyControl     = "key-control-character"
	RuleKeyNotText     = "key-not-text"

	RuleTopicEmpty   = "topic-empty"
	RuleTopicTooLong = "topic-too-long"
	RuleTopicInvalid = "topic-invalid"

	RuleUUIDMissing = "uuid-missing"
	RuleUUIDTooLong = "uuid-too-long"
	RuleUUIDInvalid = "uuid-invalid"

	RuleMetadataName     = "metadata-name-invalid"
	RuleMetadataReserved = "metadata-name-reserved"
	RuleMetadataUTF8     = "metadata-invalid-utf8"
	RuleMetadataTooLarge = "metadata-too-large"

	RulePayloadTooLarge = "payload-too-large"
	RuleDeliverAt       = "deliver-at-invalid"
)

// Limits are the limits of a message that a deployment may change.
type Limits struct {
	// MaxPayload is the largest payload in bytes. Zero is DefaultMaxPayload.
	MaxPayload int
	// AllowReserved permits names that begin with ReservedPrefix: for our own copies of
	// messages (dead letters published to a topic), never for messages of an author.
	AllowReserved bool
}

func (l Limits) maxPayload() int {
	if l.MaxPayload <= 0 {
		return DefaultMaxPayload
	}
	return l.MaxPayload
}

// ValidateTopic returns a *Violation unless topic is a logical topic that every broker can carry:
// letters, digits, '.', '_' and '-', at most MaxTopic of them, without an empty part between dots.
func ValidateTopic(topic string) error {
	switch {
	case topic == "":
		return &Violation{RuleTopicEmpty, "the topic is empty"}
	case len(topic) > MaxTopic:
		return &Violation{RuleTopicTooLong, fmt.Sprintf("the topic has %d characters, at most %d are allowed", len(topic), MaxTopic)}
	}
	for i := range len(topic) {
		if !topicByte(topic[i]) {
			return &Violation{RuleTopicInvalid, fmt.Sprintf("topic %q: only letters, digits, '.', '_' and '-' are allowed", topic)}
		}
	}
	if topic[0] == '.' || topic[len(topic)-1] == '.' || strings.Contains(topic, "..") {
		return &Violation{RuleTopicInvalid, fmt.Sprintf("topic %q has an empty part before, after or between dots", topic)}
	}
	return nil
}

func topicByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// ValidateKey returns a *Violation unless key is an idempotency key: 1 to MaxKey bytes of
// valid UTF-8 that are not only white space, without control characters (C0, DEL, C1). It is
// byte-exact: nothing is trimmed, folded or normalised, so "a" and "a " are two keys.
func ValidateKey(key string) error { return validateText("key", key) }

// ValidateOrderingKey is ValidateKey for ordering keys.
func ValidateOrderingKey(key string) error { return validateText("ordering-key", key) }

func validateText(name, s string) error {
	switch {
	case isBlank(s):
		return &Violation{name + "-empty", "the " + name + " is empty or only white space"}
	case len(s) > MaxKey:
		return &Violation{name + "-too-long", fmt.Sprintf("the %s has %d bytes, at most %d are allowed", name, len(s), MaxKey)}
	}
	return validateChars(name, s)
}

func validateChars(name, s string) error {
	if !utf8.ValidString(s) {
		return &Violation{name + "-invalid-utf8", "the " + name + " is not valid UTF-8"}
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return &Violation{name + "-control-character", fmt.Sprintf("the %s has a control character at byte %d", name, i)}
	}
	return nil
}

// isBlank reports whether s counts as no key at all. Keys of blanks come from templates whose
// variable was unset; as keys they would make unrelated messages duplicates of each other.
func isBlank(s string) bool { return strings.TrimSpace(s) == "" }

// ValidateMessage returns a *Violation unless msg may be published: a UUID, metadata within the limits and
// without reserved names, key and ordering key valid where there are any, a readable
// deliver-at, a payload within the limit. It does not ask for a key: what a missing one means is the consumer's policy.
func ValidateMessage(msg *message.Message, limits Limits) error {
	if err := validateUUID(msg.UUID); err != nil {
		return err
	}
	for name := range msg.Metadata {
		if isReserved(name, limits) {
			return &Violation{RuleMetadataReserved, fmt.Sprintf("metadata name %q: names beginning %q and %q are reserved", name, ReservedPrefix, WatermillPrefix)}
		}
	}
	if key, ok := msg.Metadata[KeyHeader]; ok {
		if err := ValidateKey(key); err != nil {
			return err
		}
	}
	if _, err := DeliverAt(msg); err != nil {
		return err
	}
	return validateContent(msg, limits)
}

// ValidateReceived returns a *Violation unless msg, as a broker delivered it, can be handled and
// kept. It is more patient than ValidateMessage with other producers: a missing UUID
// (see ReceivedUUID), reserved names and any deliver-at are no violations, and the key is judged by ExtractKey alone.
func ValidateReceived(msg *message.Message, limits Limits) error {
	if msg.UUID != "" {
		if err := validateUUID(msg.UUID); err != nil {
			return err
		}
	}
	return validateContent(msg, limits)
}

func validateContent(msg *message.Message, limits Limits) error {
	if err := validateMetadata(msg.Metadata); err != nil {
		return err
	}
	// An empty ordering key is none: a header that a template left empty orders nothing.
	if key := msg.Metadata[OrderingKeyHeader]; key != "" {
		if err := ValidateOrderingKey(key); err != nil {
			return err
		}
	}
	if len(msg.Payload) > limits.maxPayload() {
		return &Violation{RulePayloadTooLarge, fmt.Sprintf("the payload has %d bytes, at most %d are allowed", len(msg.Payload), limits.maxPayload())}
	}
	return nil
}

func validateUUID(id string) error {
	switch {
	case id == "":
		return &Violation{RuleUUIDMissing, "the message has no UUID"}
	case len(id) > MaxUUID:
		return &Violation{RuleUUIDTooLong, fmt.Sprintf("the UUID has %d bytes, at most %d are allowed", len(id), MaxUUID)}
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return &Violation{RuleUUIDInvalid, "the UUID is not valid UTF-8 or has control characters"}
	}
	return nil
}

func validateMetadata(metadata message.Metadata) error {
	size := 0
	for name, value := range metadata {
		size += len(name) + len(value)
		switch {
		case name == "" || len(name) > MaxMetadataName:
			return &Violation{RuleMetadataName, fmt.Sprintf("a metadata name has %d bytes, 1 to %d are allowed", len(name), MaxMetadataName)}
		case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
			return &Violation{RuleMetadataName, fmt.Sprintf("metadata name %q is not valid UTF-8 or has control characters", name)}
		case !utf8.ValidString(value):
			return &Violation{RuleMetadataUTF8, fmt.Sprintf("the value of metadata %q is not valid UTF-8", name)}
		}
	}
	if size > MaxMetadata {
		return &Violation{RuleMetadataTooLarge, fmt.Sprintf("the metadata has %d bytes, at most %d are allowed", size, MaxMetadata)}
	}
	return nil
}

func isReserved(name string, limits Limits) bool {
	return strings.HasPrefix(name, WatermillPrefix) || !limits.AllowReserved && strings.HasPrefix(name, ReservedPrefix)
}

// DeliverAt returns the time before which msg is not to be delivered; the zero time where it has
// none. A value that is not RFC 3339 with a zone is a *Violation.
func DeliverAt(msg *message.Message) (time.Time, error) {
	text := msg.Metadata[DeliverAtHeader]
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, &Violation{RuleDeliverAt, DeliverAtHeader + ` is not a time such as "2026-01-31T12:00:00Z"`}
	}
	return at, nil
}
