package outbox

import (
	"bytes"
	"hash/fnv"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Record is one outgoing message as it stands in the outbox.
type Record struct {
	// ID is given by the source when the record is written; within a lane records
	// are published in its order.
	ID int64
	// Topic is the logical topic.
	Topic string
	// UUID and Key identify the message. Both are stable: publishing the record twice
	// sends the same identities, so the consumer removes the copy.
	UUID string
	Key  string
	// OrderingKey is empty where the message has no order.
	OrderingKey string
	Metadata    map[string]string
	Payload     []byte
	// DeliverAt delays the record; it takes its place in the order when it is due. The zero time is now.
	DeliverAt time.Time

	// Scope and ParentKey name the message whose handling wrote the record; empty for
	// records written outside a handler.
	Scope     string
	ParentKey string

	// Set by the source.
	CreatedAt time.Time
	Attempts  int
	Aside     bool   // set aside: it will not be published until somebody retries it
	Reason    string // why the last attempt failed
}

// Lane is the number of the record's lane, see Lanes.
func (r Record) Lane() int {
	h := fnv.New32a()
	if r.OrderingKey != "" {
		_, _ = h.Write([]byte(r.OrderingKey))
	} else {
		_, _ = h.Write([]byte(r.UUID))
	}
	return int(h.Sum32() % Lanes)
}

// NewRecord makes the record of a message, or returns an *envelope.Violation. The message needs its UUID and its key; the record shares
// no memory with it. Its deliver-at becomes the record's.
func NewRecord(topic string, msg *message.Message, limits envelope.Limits) (Record, error) {
	if err := envelope.ValidateMessage(msg, limits); err != nil {
		return Record{}, err
	}
	key := msg.Metadata.Get(envelope.KeyHeader)
	if err := envelope.ValidateKey(key); err != nil {
		return Record{}, err
	}
	due, err := envelope.DeliverAt(msg)
	if err != nil {
		return Record{}, err
	}
	record := Record{
		Topic: topic, UUID: msg.UUID, Key: key, OrderingKey: msg.Metadata.Get(envelope.OrderingKeyHeader),
		Metadata: maps.Clone(msg.Metadata), Payload: bytes.Clone(msg.Payload), DeliverAt: due,
	}
	delete(record.Metadata, envelope.DeliverAtHeader)
	return record, nil
}
