package idempotency

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// NewRecord makes the outbox record of a message that the handling of parent in scope publishes, or returns an *envelope.Violation. The
// message needs its UUID and key. Outside a handler use outbox.NewRecord, or store.InTx.
func NewRecord(topic string, msg *message.Message, maxPayload int, scope, parent string) (outbox.Record, error) {
	record, err := outbox.NewRecord(topic, msg, envelope.Limits{MaxPayload: maxPayload})
	if err != nil {
		return outbox.Record{}, err
	}
	record.Scope, record.ParentKey = scope, parent
	return record, nil
}
