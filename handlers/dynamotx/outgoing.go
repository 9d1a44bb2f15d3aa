package dynamotx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Outgoing is a message that follows from the writes.
type Outgoing struct {
	// Topic is the logical topic.
	Topic string
	// Payload is what handlers.Tx.Publish takes: a *message.Message goes as it is, anything else becomes the JSON payload of a new message,
	// whose identity derives from the handled message and the place in the list.
	Payload any
}

// stored is an Outgoing as it is kept with the key.
type stored struct {
	Topic    string            `json:"topic"`
	UUID     string            `json:"uuid,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Payload  []byte            `json:"payload"`
}

// traces is room for the headers of a trace, which are added when a message is published, as its key is.
const traces = 1 << 10

// store makes the kept form. What could not be published afterwards is refused now, while nothing has happened.
func store(list []Outgoing, maxPayload int) ([]stored, error) {
	var kept []stored
	for _, o := range list {
		s, err := o.store(maxPayload)
		if err != nil {
			return nil, err
		}
		kept = append(kept, s)
	}
	return kept, nil
}

func (o Outgoing) store(maxPayload int) (stored, error) {
	s := stored{Topic: o.Topic}
	if msg, ok := o.Payload.(*message.Message); ok {
		s.UUID, s.Metadata, s.Payload = msg.UUID, msg.Metadata, msg.Payload
	} else {
		body, err := json.Marshal(o.Payload)
		if err != nil {
			return s, invalid("the payload of a message for %s has no JSON form", o.Topic)
		}
		s.Payload = body
	}
	probe := s.message()
	if probe.UUID == "" {
		probe.UUID = envelope.NewUUID() // the real one is derived when it is published
	}
	for _, added := range []string{envelope.KeyHeader, envelope.OrderingKeyHeader} {
		if probe.Metadata.Get(added) == "" {
			probe.Metadata.Set(added, strings.Repeat("k", envelope.MaxKey))
		}
	}
	probe.Metadata.Set("traceparent", strings.Repeat("t", traces))
	limits := envelope.Limits{MaxPayload: maxPayload}
	if err := errors.Join(envelope.ValidateTopic(s.Topic), envelope.ValidateMessage(probe, limits)); err != nil {
		return s, invalid("a message for %s cannot be published: %s", o.Topic, err)
	}
	return s, nil
}

func (s stored) message() *message.Message {
	msg := message.NewMessage(s.UUID, s.Payload)
	for name, value := range s.Metadata {
		msg.Metadata.Set(name, value)
	}
	return msg
}

func publish(ctx context.Context, tx handlers.Tx, list []stored) error {
	for _, s := range list {
		if err := tx.Publish(ctx, s.Topic, s.message()); err != nil {
			return fmt.Errorf("publish a stored message: %w", err)
		}
	}
	return nil
}
