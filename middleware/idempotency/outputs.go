package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Transform turns a message into messages, which it gives to out. It gets a copy of the message for each attempt and has no other effect.
type Transform func(ctx context.Context, out *Outputs, msg *message.Message) error

// Outputs takes the messages of one attempt. They become visible with the commit of the attempt's batch. It is closed when the
// transform returns, panics or overruns its deadline.
type Outputs struct {
	job   *job
	check func(ctx context.Context, topic string, msg *message.Message) error

	mu      sync.Mutex
	closed  bool
	records []outbox.Record
}

// Key is the idempotency key of the handled message.
func (o *Outputs) Key() string { return o.job.id.Key }

// Scope is the binding's scope.
func (o *Outputs) Scope() string { return o.job.id.Scope }

// Publish adds messages, as Tx.Publish does and under the same identities. One that can never be published is refused with a permanent
// error; deliver-at is among what is refused.
func (o *Outputs) Publish(ctx context.Context, topic string, payloads ...any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrTxClosed
	}
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	for _, p := range payloads {
		record, err := o.job.record(ctx, topic, p, len(o.records))
		if err == nil {
			err = o.accept(ctx, record)
		}
		if err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		o.records = append(o.records, record)
	}
	return nil
}

func (o *Outputs) accept(ctx context.Context, record outbox.Record) error {
	if !record.DeliverAt.IsZero() {
		return &unpublishable{errors.New("deliver-at needs the outbox, which a broker's transaction does not have: keep this binding's keys in the database")}
	}
	err := o.check(ctx, record.Topic, record.Message())
	if errors.Is(err, outbox.ErrUnpublishable) {
		return &unpublishable{err}
	}
	return err
}

func (o *Outputs) close() []outbox.Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	return o.records
}

// unpublishable is an output that no retry publishes.
type unpublishable struct{ err error }

func (u *unpublishable) Error() string     { return u.err.Error() }
func (u *unpublishable) Unwrap() error     { return u.err }
func (u *unpublishable) Permanent() string { return "unpublishable" }
