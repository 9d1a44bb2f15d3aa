package natsbroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// publishWindow bounds the messages that wait for the server's confirmation, of all callers together.
const publishWindow = 2048

// publisher publishes to JetStream, pipelined.
type publisher struct {
	b      *Broker
	window chan struct{}
}

var _ broker.Publisher = (*publisher)(nil)

func newPublisher(b *Broker) *publisher {
	return &publisher{b: b, window: make(chan struct{}, publishWindow)}
}

// Close does nothing: the broker closes its publisher.
func (*publisher) Close() error { return nil }

// Publish publishes and returns when each message is stored, or the errors of those that are not. It waits 30 seconds at most.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), publishTimeout)
	defer cancel()
	return errors.Join(p.PublishBatch(ctx, topic, messages)...)
}

// PublishBatch publishes with all messages in flight at once, but one after the other those that share an ordering key. A message
// whose ordering key had a failure before it is not sent. After an error that is not of the message the message may have been stored.
func (p *publisher) PublishBatch(ctx context.Context, topic string, messages []*message.Message) []error {
	errs := make([]error, len(messages))
	if len(messages) == 0 {
		return errs
	}
	ready, err := p.ready(ctx, topic)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	batch := &batch{p: p, place: ready, errs: errs, encoded: make([]*nats.Msg, len(messages))}
	for i, msg := range messages {
		batch.encoded[i], errs[i] = p.encode(ready, msg)
	}
	chains := batch.chains(messages)
	if p.b.topology.atomic {
		chains = batch.atomic(ctx, chains)
	}
	for len(chains) > 0 {
		chains = batch.publish(ctx, chains)
	}
	return errs
}

// ready waits for the connection; nothing was sent yet, so waiting is safe.
func (p *publisher) ready(ctx context.Context, topic string) (place, error) {
	if err := envelope.ValidateTopic(topic); err != nil {
		return place{}, unpublishable(err)
	}
	if p.b.closed() {
		return place{}, closedPublishing()
	}
	if err := ctx.Err(); err != nil {
		return place{}, fmt.Errorf("publishing to %s: %w", topic, err)
	}
	if err := p.b.link.await(ctx); errors.Is(err, errClosed) {
		return place{}, closedPublishing()
	} else if err != nil {
		return place{}, fmt.Errorf("publishing to %s: %w", topic, err)
	}
	return p.b.cfg.place(topic), nil
}

// closedPublishing is an error that says nothing about the message.
func closedPublishing() error { return fmt.Errorf("%w: %w", outbox.ErrUnavailable, errClosed) }

func unpublishable(err error) error { return fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err) }

func (p *publisher) encode(to place, msg *message.Message) (*nats.Msg, error) {
	uuid := msg.UUID
	if uuid == "" {
		uuid = envelope.NewUUID()
	}
	checked := &message.Message{UUID: uuid, Metadata: msg.Metadata, Payload: msg.Payload}
	if err := envelope.ValidateMessage(checked, envelope.Limits{MaxPayload: p.b.maxPayload}); err != nil {
		return nil, unpublishable(err)
	}
	header, err := encodeHeaders(uuid, msg.Metadata)
	if err != nil {
		return nil, unpublishable(err)
	}
	return &nats.Msg{Subject: to.subject, Header: header, Data: msg.Payload}, nil
}

// batch is one PublishBatch. It goes in rounds: each sends the next message of each chain.
type batch struct {
	p       *publisher
	place   place
	encoded []*nats.Msg
	errs    []error
}

// chain is the messages of one ordering key, or one message without, by their index.
type chain []int

func (b *batch) chains(messages []*message.Message) []chain {
	var all []chain
	byKey := map[string]int{}
	for i, msg := range messages {
		key := msg.Metadata[envelope.OrderingKeyHeader]
		if at, ok := byKey[key]; ok && key != "" {
			all[at] = append(all[at], i)
			continue
		}
		byKey[key] = len(all)
		all = append(all, chain{i})
	}
	return all
}

// publish sends the first message of each chain, waits for the outcomes, and returns what is left of the chains.
func (b *batch) publish(ctx context.Context, round []chain) []chain {
	var sent []flight // oldest first
	for _, c := range round {
		if i := c[0]; b.errs[i] == nil {
			sent = b.room(ctx, sent)
			if f, ok := b.send(ctx, i); ok {
				sent = append(sent, f)
			}
		}
	}
	for _, f := range sent {
		b.settle(ctx, f)
	}
	var left []chain
	for _, c := range round {
		switch {
		case len(c) == 1:
		case b.errs[c[0]] != nil:
			b.stop(c)
		default:
			left = append(left, c[1:])
		}
	}
	return left
}

// flight is a message whose confirmation is waited for. It holds a slot of the window.
type flight struct {
	i      int
	future jetstream.PubAckFuture
}

// room settles flights until the window has a free slot or there are none. A batch that waits for a
// slot holds none, or two batches could wait for each other.
func (b *batch) room(ctx context.Context, sent []flight) []flight {
	for len(sent) > 0 && len(b.p.window) == cap(b.p.window) {
		b.settle(ctx, sent[0])
		sent = sent[1:]
	}
	return sent
}

func (b *batch) settle(ctx context.Context, f flight) {
	b.errs[f.i] = b.outcome(ctx, b.encoded[f.i], f.future)
	<-b.p.window
}

// stop marks what follows a failed message in its chain as not sent.
func (b *batch) stop(c chain) {
	for _, i := range c[1:] {
		b.errs[i] = fmt.Errorf("not sent: message %d of the batch, before it in its ordering key, failed", c[0])
	}
}

// send puts one message on its way, or notes why not.
func (b *batch) send(ctx context.Context, i int) (flight, bool) {
	select {
	case b.p.window <- struct{}{}:
	case <-ctx.Done():
		b.errs[i] = fmt.Errorf("not sent: %w", ctx.Err())
		return flight{}, false
	}
	future, err := b.p.b.link.js.PublishMsgAsync(b.encoded[i], jetstream.WithRetryAttempts(0))
	if err != nil {
		<-b.p.window
		b.errs[i] = classify(err)
		return flight{}, false
	}
	return flight{i: i, future: future}, true
}

// outcome waits for the server's answer. A topic without a stream gets one, where topology is ours.
func (b *batch) outcome(ctx context.Context, m *nats.Msg, future jetstream.PubAckFuture) error {
	err := await(ctx, future)
	if !errors.Is(err, jetstream.ErrNoStreamResponse) || b.p.b.cfg.Topology != topologyDeclare {
		return classify(err)
	}
	if err := b.declare(ctx); err != nil {
		return classify(err)
	}
	future, err = b.p.b.link.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return classify(err)
	}
	return classify(await(ctx, future))
}

func (b *batch) declare(ctx context.Context) error {
	ctx, cancel := b.p.b.link.during(ctx, 2*requestTimeout)
	defer cancel()
	return b.p.b.topology.declareStream(ctx, b.place.topic)
}

func await(ctx context.Context, future jetstream.PubAckFuture) error {
	select {
	case <-future.Ok():
		return nil
	case err := <-future.Err():
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the server's confirmation: %w", ctx.Err())
	}
}

// JetStream's error codes that say that the message itself will never be stored.
const (
	codeMessageTooLarge jetstream.ErrorCode = 10054
	codeHeaderTooLarge  jetstream.ErrorCode = 10097
)

// classify marks an error by what a relay is to make of it.
func classify(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: %w", outbox.ErrUnroutable, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return unpublishable(fmt.Errorf("%w; raise the server's max_payload", err))
	case errors.As(err, &api):
		if api.ErrorCode == codeMessageTooLarge || api.ErrorCode == codeHeaderTooLarge {
			return unpublishable(err)
		}
		if api.Code >= 500 { // the stream is full, or has no leader
			return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		}
		return fmt.Errorf("the stream refused the message: %w", err)
	case errors.Is(err, outbox.ErrUnavailable):
		return err
	case errors.Is(err, nats.ErrConnectionClosed):
		return fmt.Errorf("%w: %w", closedPublishing(), err)
	case isOutage(err):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

// isOutage reports errors of the connection or of the server as a whole. The message may have been stored.
func isOutage(err error) bool {
	for _, outage := range []error{
		nats.ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrTimeout,
		nats.ErrNoServers, nats.ErrStaleConnection, jetstream.ErrAsyncPublishTimeout, jetstream.ErrTooManyStalledMsgs,
	} {
		if errors.Is(err, outage) {
			return true
		}
	}
	return false
}
