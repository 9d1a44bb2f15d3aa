package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const (
	// One statement writes at most so many messages, and bytes.
	chunkMessages = 1000
	chunkBytes    = 4 << 20
)

// errEarlier stops the messages of an ordering key that follow a refused one.
var errEarlier = errors.New("an earlier message of its ordering key was refused")

// publisher writes into the topics' tables.
type publisher struct{ b *sqlBroker }

var _ broker.Publisher = (*publisher)(nil)

// Publish is PublishBatch on the first message's context.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	return errors.Join(p.PublishBatch(msgs[0].Context(), topic, msgs)...)
}

// Close does nothing: the broker closes its publisher.
func (p *publisher) Close() error { return nil }

// PublishBatch writes the messages in chunks, each of which is one transaction. See outbox.Publisher.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	w := &batch{topic: topic, msgs: msgs, errs: make([]error, len(msgs)), refused: map[string]bool{}}
	if len(msgs) == 0 {
		return w.errs
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.b.cfg.PublishTimeout,
		fmt.Errorf("not committed within %s: %w", p.b.cfg.PublishTimeout, context.DeadlineExceeded))
	defer cancel()
	rows := w.prepare(envelope.Limits{MaxPayload: p.b.opts.MaxPayload})
	err := p.b.do(ctx, func(ctx context.Context) error {
		for len(rows) > 0 {
			part := rows[:chunk(rows)]
			if err := p.write(ctx, w, part); err != nil {
				return err
			}
			rows = rows[len(part):]
		}
		return nil
	})
	if errors.Is(err, errClosed) {
		err = fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	w.fail(rows, err)
	return w.errs
}

// write writes rows at once, or, where the server refuses the content of some, one by one. It returns an error that ends the batch.
func (p *publisher) write(ctx context.Context, w *batch, rows []outgoing) error {
	err := p.insert(ctx, w.topic, rows)
	switch {
	case err == nil:
		p.b.bell.ring(w.topic)
		return nil
	case !errors.Is(err, outbox.ErrUnpublishable):
		return err
	}
	for i, r := range rows {
		key := w.key(r)
		if key != "" && w.refused[key] {
			w.fail(rows[i:i+1], errEarlier)
			continue
		}
		err := p.insert(ctx, w.topic, rows[i:i+1])
		if err != nil {
			w.fail(rows[i:i+1], err)
			w.refused[key] = true
			continue
		}
		p.b.bell.ring(w.topic)
	}
	return nil
}

// insert writes rows, and makes a table that is missing.
func (p *publisher) insert(ctx context.Context, topic string, rows []outgoing) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := p.b.server.publish(ctx, topic, rows)
	if errors.Is(err, errNoTopic) && p.b.cfg.Topology == Declare {
		if err = p.b.prepare(ctx, topic, p.b.known(topic)); err == nil {
			err = p.b.server.publish(ctx, topic, rows)
		}
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not confirmed, the outcome is unknown: %w", context.Cause(ctx))
	}
	return p.b.server.classify(err)
}

// batch is one PublishBatch.
type batch struct {
	topic   string
	msgs    []*message.Message
	errs    []error
	refused map[string]bool // ordering keys
}

func (w *batch) key(r outgoing) string { return w.msgs[r.index].Metadata[envelope.OrderingKeyHeader] }

// prepare checks the messages and encodes what passes; it writes the others' errors.
func (w *batch) prepare(limits envelope.Limits) []outgoing {
	rows := make([]outgoing, 0, len(w.msgs))
	topicErr := envelope.ValidateTopic(w.topic)
	for i, msg := range w.msgs {
		r := outgoing{index: i, uuid: msg.UUID, payload: msg.Payload}
		err := topicErr
		if r.uuid == "" {
			msg = envelope.Prepare(msg)
			r.uuid = msg.UUID
		}
		if err == nil {
			err = envelope.ValidateMessage(msg, limits)
		}
		if err == nil {
			r.metadata, err = encodeMetadata(msg.Metadata)
		}
		key := msg.Metadata[envelope.OrderingKeyHeader]
		if err == nil && key != "" && w.refused[key] {
			err = errEarlier
		}
		if err != nil {
			w.refused[key] = true
			w.fail([]outgoing{r}, err)
			continue
		}
		rows = append(rows, r)
	}
	return rows
}

func (w *batch) fail(rows []outgoing, err error) {
	for _, r := range rows {
		w.errs[r.index] = fmt.Errorf("publishing message %.40q to %.50q: %w", r.uuid, w.topic, err)
	}
}

// chunk returns how many rows go into one statement.
func chunk(rows []outgoing) int {
	size := 0
	for i, r := range rows {
		size += len(r.payload) + len(r.metadata)
		if i > 0 && size > chunkBytes || i == chunkMessages {
			return i
		}
	}
	return len(rows)
}

// nackDelay grows with the deliveries, so that nothing loops hot.
func nackDelay(times int, slowest time.Duration) time.Duration {
	const first = 100 * time.Millisecond
	return min(first<<min(max(times-1, 0), 10), slowest)
}
