package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// publisher publishes with confirms and the mandatory flag.
type publisher struct {
	b    *rabbit
	pool *pool
}

var _ broker.Publisher = (*publisher)(nil)

// outgoing is one valid message of a batch.
type outgoing struct {
	index int // in the batch
	uuid  string
	amqp  amqp.Publishing
}

// Publish is PublishBatch on the first message's context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	return errors.Join(p.PublishBatch(msgs[0].Context(), topic, msgs)...)
}

// Close does nothing: the broker closes its publisher.
func (p *publisher) Close() error { return nil }

// PublishBatch writes all messages before it waits for their confirms. See outbox.Publisher.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	fail := func(batch []outgoing, err error) {
		for _, out := range batch {
			errs[out.index] = fmt.Errorf("publishing message %s to %s: %w", out.uuid, topic, markOutage(err))
		}
	}
	batch := p.prepare(topic, msgs, errs)
	ctx, cancel := context.WithTimeoutCause(ctx, p.b.cfg.PublishTimeout,
		fmt.Errorf("not confirmed within %s: %w", p.b.cfg.PublishTimeout, context.DeadlineExceeded))
	defer cancel()
	for len(batch) > 0 {
		part := batch[:min(len(batch), chunk)]
		batch = batch[len(part):]
		outcomes, err := p.isolate(ctx, topic, part)
		if err != nil {
			fail(part, err)
			fail(batch, err)
			return errs
		}
		for i, err := range outcomes {
			if err != nil {
				fail(part[i:i+1], err)
			}
		}
	}
	return errs
}

// prepare checks the messages and encodes what passes; it writes the others' errors.
func (p *publisher) prepare(topic string, msgs []*message.Message, errs []error) []outgoing {
	limits := envelope.Limits{MaxPayload: p.b.opts.MaxPayload}
	batch := make([]outgoing, 0, len(msgs))
	topicErr := envelope.ValidateTopic(topic)
	for i, msg := range msgs {
		msg = envelope.Prepare(msg)
		err := topicErr
		if err == nil {
			err = envelope.ValidateMessage(msg, limits)
		}
		out := outgoing{index: i, uuid: msg.UUID}
		if err == nil {
			out.amqp, err = encode(msg)
		}
		if err != nil {
			errs[i] = fmt.Errorf("publishing to %.50q: %w", topic, err)
			continue
		}
		batch = append(batch, out)
	}
	return batch
}

// isolate publishes a chunk; where the broker refused a message of it, which closes the channel under all, it
// sends those one by one whose outcome is not known, so that only the refused one fails, for good.
func (p *publisher) isolate(ctx context.Context, topic string, part []outgoing) ([]error, error) {
	outcomes, err := p.publish(ctx, topic, part)
	if err != nil || !slices.ContainsFunc(outcomes, isRefused) {
		return outcomes, err
	}
	for i, outcome := range outcomes {
		if !isLost(outcome) {
			continue
		}
		alone, err := p.publish(ctx, topic, part[i:i+1])
		if err == nil {
			err = alone[0]
		}
		if isRefused(err) {
			err = fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
		}
		outcomes[i] = err
	}
	return outcomes, nil
}

// result is what became of a chunk: one error for each message, or the error of all.
type result struct {
	outcomes []error
	err      error
}

// publish publishes at most a chunk of messages and returns one error for each, or the error of all.
func (p *publisher) publish(ctx context.Context, topic string, part []outgoing) ([]error, error) {
	done := make(chan result, 1)
	// A write blocks without regard to ctx while the broker does not read: the goroutine stays behind then, with its
	// place in the pool, until the broker reads again or the connection ends.
	if !p.b.start(func() { p.onChannel(ctx, topic, part, done) }) {
		return nil, errClosed
	}
	select {
	case r := <-done:
		return r.outcomes, r.err
	case <-ctx.Done():
	}
	// The confirms that came in time are worth a moment.
	select {
	case r := <-done:
		return r.outcomes, r.err
	case <-time.After(100 * time.Millisecond):
		return nil, context.Cause(ctx)
	}
}

// onChannel publishes on a channel of the pool, and answers on done before it tidies up, which may take as long as a write.
func (p *publisher) onChannel(ctx context.Context, topic string, part []outgoing, done chan<- result) {
	c, err := p.take(ctx)
	if err != nil {
		done <- result{err: causeOf(ctx, err)}
		return
	}
	outcomes, err := p.exchange(ctx, c, topic, part)
	lost := slices.ContainsFunc(outcomes, isLost)
	done <- result{outcomes, err} // the outcomes are the receiver's from here on
	if lost {
		// Confirms may still be on their way: nobody may use the channel again.
		_ = c.Close()
		c = nil
	}
	p.pool.release(c)
}

// take waits out an alarm of the broker, so that nothing is written that it would not read, and takes a channel.
func (p *publisher) take(ctx context.Context) (*channel, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	_, alarm, err := p.pool.link.get(ctx)
	if err != nil {
		return nil, notConnected(ctx, err)
	}
	if err := alarm.wait(ctx); err != nil {
		return nil, fmt.Errorf("the broker holds back publishers (memory or disk alarm): %w", causeOf(ctx, err))
	}
	return p.pool.take(ctx)
}

// exchange writes the messages and gathers their confirms and returns.
func (p *publisher) exchange(ctx context.Context, c *channel, topic string, part []outgoing) ([]error, error) {
	if err := p.ready(c, topic); err != nil {
		return nil, err
	}
	place := p.b.cfg.place(topic)
	outcomes := make([]error, len(part))
	confirms := make([]*amqp.DeferredConfirmation, len(part))
	for i, out := range part {
		confirm, err := c.PublishWithDeferredConfirm(place.exchange, place.key, true, false, out.amqp)
		if err != nil {
			for ; i < len(part); i++ {
				outcomes[i] = &lostError{err}
			}
			break
		}
		confirms[i] = confirm
	}
	for i, confirm := range confirms {
		if confirm != nil {
			outcomes[i] = outcome(ctx, c, confirm)
		}
	}
	if back := c.unroutable(); back != nil {
		delete(c.ready, topic) // a queue that was deleted is declared again
		for i, out := range part {
			if outcomes[i] == nil && back[out.uuid] {
				outcomes[i] = fmt.Errorf("%w: exchange %q, routing key %q: declare the topic's groups, or bind a queue", outbox.ErrUnroutable, place.exchange, place.key)
			}
		}
	}
	return outcomes, nil
}

func outcome(ctx context.Context, c *channel, confirm *amqp.DeferredConfirmation) error {
	acked, err := confirm.WaitContext(ctx)
	switch {
	case acked:
		return nil
	case err != nil:
		return &lostError{causeOf(ctx, err)}
	case c.IsClosed():
		return &lostError{c.fault()}
	}
	return errors.New("the broker refused the message (queue full, or an internal error)")
}

// ready declares what the topic needs, once for each channel: what another client deleted meanwhile comes back
// with the next channel.
func (p *publisher) ready(c *channel, topic string) error {
	if c.ready[topic] || p.b.cfg.Topology != Declare {
		return nil
	}
	if err := p.b.cfg.prepareExchange(c.Channel, topic); err != nil {
		return err
	}
	for _, sub := range p.b.known(topic) {
		if err := p.b.cfg.prepareQueue(c.Channel, sub); err != nil {
			return err
		}
	}
	c.ready[topic] = true
	return nil
}

// lostError is the error of a message whose outcome is not known, or that was not sent; its channel is given up.
type lostError struct{ err error }

func (e *lostError) Error() string { return "not confirmed, the outcome is unknown: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

func isLost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}

// isRefused reports whether the broker closed the channel because of a message: it is larger than max_message_size.
func isRefused(err error) bool {
	var refusal *amqp.Error
	return isLost(err) && errors.As(err, &refusal) && (refusal.Code == amqp.PreconditionFailed || refusal.Code == amqp.ContentTooLarge)
}

// notConnected marks the failure of a connection to open.
func notConnected(ctx context.Context, err error) error {
	if errors.Is(err, errClosed) || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
}

// markOutage marks an error of the connection, or of the broker as a whole, which says nothing about the message.
func markOutage(err error) error {
	var said *amqp.Error
	for _, mark := range []error{outbox.ErrUnpublishable, outbox.ErrUnroutable, outbox.ErrUnavailable} {
		if errors.Is(err, mark) {
			return err
		}
	}
	var network net.Error
	if errors.Is(err, errClosed) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	if !errors.As(err, &said) {
		return err
	}
	switch said.Code {
	case amqp.ConnectionForced, amqp.FrameError, amqp.ChannelError, amqp.UnexpectedFrame, amqp.ResourceError, amqp.InternalError:
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

// causeOf returns why ctx ended where err is nothing but its end, else err.
func causeOf(ctx context.Context, err error) error {
	if err != nil && err == ctx.Err() { //nolint:errorlint // a wrapped one says more
		return context.Cause(ctx)
	}
	return err
}
