package idempotency

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrOutsideHandler is returned by TxPublisher for a message whose context carries no handler's transaction.
var ErrOutsideHandler = errors.New("idempotency: published outside of a handler: pass the handled message's context on, or use the store's Publish")

// TxPublisher is a Watermill publisher for what handlers publish themselves, such as through the event bus of
// Watermill's CQRS component: a message goes to the outbox of the transaction that its context carries, as Tx.Publish does, and
// leaves when that commits. It is safe for concurrent use as far as the transaction is.
type TxPublisher struct{}

var _ message.Publisher = TxPublisher{}

// Publish adds the messages to the outbox, each in the transaction of its own context.
func (TxPublisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		tx, inside := TxFrom(msg.Context())
		if !inside {
			return fmt.Errorf("publishing message %s to %s: %w", msg.UUID, topic, ErrOutsideHandler)
		}
		if err := tx.Publish(msg.Context(), topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing.
func (TxPublisher) Close() error { return nil }
