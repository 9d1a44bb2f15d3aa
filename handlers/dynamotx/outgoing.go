package dynamotx

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Outgoing is a message that follows from the writes.
type Outgoing struct {
	// Topic is the logical topic.
	Topic string
	// Payload is what handlers.Tx.Publish takes: a *message.Message goes as it is, anything else becomes the JSON payload of a new message. UUID and key
	// derive from the handled message and the place in the list unless given, and its ordering key is taken over unless given.
	Payload any
}

// records makes the records of a plan's messages. What could not be published afterwards is refused now, while nothing has happened.
func (c *commit) records(ctx context.Context, list []Outgoing) ([]outbox.Record, error) {
	scope, key := c.key.Message()
	limits := envelope.Limits{MaxPayload: c.MaxPayload}
	var records []outbox.Record
	for nth, o := range list {
		msg, err := o.message()
		if err != nil {
			return nil, err
		}
		c.identify(ctx, msg, envelope.DeriveUUID(scope, key, nth))
		record, err := outbox.NewRecord(o.Topic, msg, limits)
		if err = errors.Join(envelope.ValidateTopic(o.Topic), err); err != nil {
			return nil, invalid("a message for %s cannot be published: %s", o.Topic, err)
		}
		record.Scope, record.ParentKey = scope, key
		records = append(records, record)
	}
	return records, nil
}

// message is one that is ours to change.
func (o Outgoing) message() (*message.Message, error) {
	if given, ok := o.Payload.(*message.Message); ok {
		msg := message.NewMessage(given.UUID, given.Payload)
		for name, value := range given.Metadata {
			msg.Metadata.Set(name, value)
		}
		return msg, nil
	}
	body, err := json.Marshal(o.Payload)
	if err != nil {
		return nil, invalid("the payload of a message for %s has no JSON form", o.Topic)
	}
	return message.NewMessage("", body), nil
}

// trace is how a trace goes on in the headers of messages, as everywhere in the application.
var trace = propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

// identify gives an outgoing message what its author left out, and the trace.
func (c *commit) identify(ctx context.Context, msg *message.Message, identity string) {
	if msg.UUID == "" {
		msg.UUID = identity
	}
	added := propagation.MapCarrier{envelope.KeyHeader: identity}
	if order := c.msg.Metadata.Get(envelope.OrderingKeyHeader); order != "" {
		added.Set(envelope.OrderingKeyHeader, order)
	}
	trace.Inject(ctx, added)
	for name, value := range added {
		if msg.Metadata.Get(name) == "" {
			msg.Metadata.Set(name, value)
		}
	}
}
