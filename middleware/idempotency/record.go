package idempotency

import (
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// NewRecord makes the outbox record of a message, or returns an *envelope.Violation. The message needs its UUID and key. scope and parent name the
// message whose handling publishes it; both are empty outside a handler.
func NewRecord(topic string, msg *message.Message, maxPayload int, scope, parent string) (outbox.Record, error) {
	if err := envelope.ValidateMessage(msg, envelope.Limits{MaxPayload: maxPayload}); err != nil {
		return outbox.Record{}, err
	}
	key := msg.Metadata.Get(envelope.KeyHeader)
	if err := envelope.ValidateKey(key); err != nil {
		return outbox.Record{}, err
	}
	record := outbox.Record{
		Topic: topic, UUID: msg.UUID, Key: key,
		OrderingKey: msg.Metadata.Get(envelope.OrderingKeyHeader),
		Metadata:    maps.Clone(msg.Metadata), Payload: msg.Payload,
		Scope: scope, ParentKey: parent,
	}
	due, err := envelope.DeliverAt(msg)
	if err != nil {
		return outbox.Record{}, err
	}
	record.DeliverAt = due
	delete(record.Metadata, envelope.DeliverAtHeader)
	return record, nil
}
