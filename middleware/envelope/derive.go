package envelope

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
)

// Domains keep derived identities of different purposes apart. They are part of every stored
// identity: a changed one makes every message in flight a new message.
const (
	domainMessage    = "oncemill/message/1"
	domainDownstream = "oncemill/downstream/1"
	domainDelivery   = "oncemill/delivery/1"
	domainForeign    = "oncemill/foreign-uuid/1"
)

// DeriveUUID returns the identity of the ordinal-th message that the handling of parentKey in
// scope produces: a UUID of version 8 from SHA-256. The same input gives the same UUID
// for ever, on every machine. Where parentKey is a UUID of version 7 or 8 or a ULID, its 48 bits of time
// lead, so that children sort with their parents; otherwise all of it is hash.
func DeriveUUID(scope, parentKey string, ordinal int) string {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(ordinal))
	sum := hashParts(domainMessage, scope, parentKey, string(n[:]))
	return hashUUID(sum, parentKey)
}

// DeriveKey returns the idempotency key of the ordinal-th produced message. It is
// the same text as DeriveUUID, so that one identity can be followed everywhere.
func DeriveKey(scope, parentKey string, ordinal int) string {
	return DeriveUUID(scope, parentKey, ordinal)
}

// Downstream returns the key that an outside provider gets, to deduplicate the calls made for key in
// scope: an Idempotency-Key header, the left part of a Message-ID. sub tells several calls for one message apart. It
// is a UUID, stable for ever, and gives away neither scope nor key.
func Downstream(scope, key string, sub ...string) string {
	return hashUUID(hashParts(append([]string{domainDownstream, scope, key}, sub...)...), "")
}

// DeliveryUUID returns the UUID of a message that came without one, from its position in the broker; it is the same on every redelivery.
func DeliveryUUID(broker, position string) string {
	return hashUUID(hashParts(domainDelivery, broker, position), "")
}

// ReceivedUUID returns the UUID that a delivered message is to have: its own where that is
// valid; one derived from an own that is too long or unreadable; else one derived from the
// delivery's position or message id; else a random one, which a redelivery does not repeat.
func ReceivedUUID(own string, d Delivery) string {
	switch {
	case own != "" && validateUUID(own) == nil:
		return own
	case own != "":
		return hashUUID(hashParts(domainForeign, own), "")
	case d.Position != "":
		return DeliveryUUID(d.Broker, d.Position)
	case d.MessageID != "":
		return hashUUID(hashParts(domainForeign, d.MessageID), "")
	}
	return NewUUID()
}

// NewUUID returns a new UUID of version 7: random, and ordered by time.
func NewUUID() string { return uuid.Must(uuid.NewV7()).String() }

// hashParts hashes parts with their lengths, so that ("ab", "c") and ("a", "bc") differ.
func hashParts(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	var n [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// hashUUID makes a version 8 UUID of sum, led by the time of key where it has one.
func hashUUID(sum [sha256.Size]byte, key string) string {
	id := uuid.UUID(sum[:16])
	if lead, ok := leadingTime(key); ok {
		copy(id[:6], lead[:])
	}
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// leadingTime returns the 48 bits that order key by time. Of a version 8 UUID it cannot know
// whether they are time, but taking them on is harmless, and keeps the order over several hops.
func leadingTime(key string) (lead [6]byte, ok bool) {
	switch len(key) {
	case 36:
		id, err := uuid.Parse(key)
		if err != nil || id.Version() != 7 && id.Version() != 8 {
			return lead, false
		}
		return [6]byte(id[:6]), true
	case ulid.EncodedSize:
		id, err := ulid.ParseStrict(key)
		if err != nil {
			return lead, false
		}
		return [6]byte(id[:6]), true
	}
	return lead, false
}
