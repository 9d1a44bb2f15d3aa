package handlers

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

type txKey struct{}

// TxFrom returns the transaction of the message that is being handled, for a HandlerFunc that Watermill wraps. The bool is false elsewhere.
func TxFrom(ctx context.Context) (Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(Tx)
	return tx, ok
}

// Watermill makes a Handler of a HandlerFunc as it stands in a Watermill router. It takes its transaction with TxFrom(msg.Context()). The messages
// that it returns go to the outbox of that transaction, for the topic publish; with publish empty it may return none. It is given a copy of the
// message: its Ack and Nack reach nobody.
func Watermill(publish string, h message.HandlerFunc) Handler {
	return func(ctx context.Context, tx Tx, msg *message.Message) (any, error) {
		msg.SetContext(context.WithValue(ctx, txKey{}, tx))
		produced, err := h(msg)
		if err != nil || len(produced) == 0 {
			return nil, err
		}
		if publish == "" {
			return nil, errors.New("the handler returns messages, but handlers.Watermill was given no topic for them")
		}
		for _, p := range produced {
			if err := tx.Publish(ctx, publish, p); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}
