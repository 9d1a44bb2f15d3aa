package handlers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Transform is a handler that turns one message into messages and does nothing else: it gets no database. It is called with a copy
// of the message for each attempt. An error publishes nothing; its kind decides what follows (see Permanent, RetryAfter).
//
// With the keys in the database it runs as a transactional handler, and its messages go through the outbox, on any broker. With --keys kafka on Kafka,
// its messages, the key and the consumed offset commit in one Kafka transaction.
type Transform func(ctx context.Context, out Emitter, msg *message.Message) error

// Emitter takes the messages that a Transform produces. It is used by one goroutine at a time and closed when the transform returns.
type Emitter interface {
	// Publish adds messages, as Tx.Publish does and under the same identities, wherever the keys are kept. deliver-at is refused in a
	// Kafka transaction.
	Publish(ctx context.Context, topic string, payloads ...any) error
	// Key is the idempotency key of the handled message, Scope the binding's scope.
	Key() string
	Scope() string
}

// JSONTransform makes a Transform from a function over a typed payload, as JSON does of a Handler.
func JSONTransform[P any](transform func(ctx context.Context, out Emitter, payload P) error) Transform {
	return func(ctx context.Context, out Emitter, msg *message.Message) error {
		payload, err := Decode[P](msg)
		if err != nil {
			return err
		}
		return transform(ctx, out, payload)
	}
}

// onlyEmits hides what else a transaction could do.
type onlyEmits struct{ Emitter }

// Handler returns the transform as a transactional handler.
func (t Transform) Handler() Handler {
	return func(ctx context.Context, tx Tx, msg *message.Message) (any, error) {
		return nil, t(ctx, onlyEmits{tx}, msg)
	}
}
