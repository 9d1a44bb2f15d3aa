package store

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// InTx is a Watermill publisher that writes to the outbox in a transaction of the caller's: what it publishes leaves when
// tx commits, and never if it rolls back. tx is what s.Publish takes. It is for code outside of handlers, such as an HTTP API that
// stores an order and tells of it; within a handler use its Tx.
//
// Each message gets its identities as envelope.NewPublisher gives them, and opts say how its key is composed. An error that wraps an
// *envelope.Violation wrote nothing; after any other the transaction must be rolled back. Nothing is tried again here:
// repeat the whole transaction. Like a transaction it is used by one goroutine at a time. Close does nothing.
func InTx(ctx context.Context, s Store, tx any, opts envelope.PublisherOptions) *envelope.Publisher {
	opts.Attempts = 1
	return envelope.NewPublisher(&txPublisher{ctx: ctx, store: s, tx: tx, limits: opts.Limits}, opts)
}

type txPublisher struct {
	ctx    context.Context // Watermill's Publish takes none
	store  Store
	tx     any
	limits envelope.Limits
}

var _ message.Publisher = (*txPublisher)(nil)

// Publish writes all of the messages or none.
func (p *txPublisher) Publish(topic string, messages ...*message.Message) error {
	records := make([]outbox.Record, len(messages))
	for i, msg := range messages {
		var err error
		if records[i], err = outbox.NewRecord(topic, msg, p.limits); err != nil {
			return err
		}
	}
	return p.store.Publish(p.ctx, p.tx, records)
}

func (p *txPublisher) Close() error { return nil }
