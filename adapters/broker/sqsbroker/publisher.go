package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

const (
	// maxBatch is how many entries the service takes in one request.
	maxBatch = 10
	// sending bounds the requests of the publisher that are on their way.
	sending = 32
	// entryAttempts is how often an entry is sent that the service refused for a reason of its own.
	entryAttempts = 5
	entryPause    = 50 * time.Millisecond
)

// publisher sends each message to every queue of its topic.
type publisher struct {
	b     *sqsBroker
	slots chan struct{}
}

var _ broker.Publisher = (*publisher)(nil)

func newPublisher(b *sqsBroker) *publisher {
	return &publisher{b: b, slots: make(chan struct{}, sending)}
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

// PublishBatch sends the messages, to all queues of the topic at once. A message has an error unless every queue has it; sending it
// again under its UUID doubles it nowhere for five minutes. See outbox.Publisher.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	if len(msgs) == 0 {
		return errs
	}
	limit := p.b.cfg.PublishTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not confirmed within %s: %w", limit, context.DeadlineExceeded))
	defer cancel()
	chains := p.prepare(topic, msgs, errs)
	failed := p.b.do(ctx, func(ctx context.Context) error { return p.fanOut(ctx, topic, chains, errs) })
	for i, err := range errs {
		if err == nil {
			err = failed
		}
		if err != nil {
			errs[i] = fmt.Errorf("publishing message %.40q to %.50q: %w", msgs[i].UUID, topic, err)
		}
	}
	return errs
}

// chain is the messages of one ordering key, or one message without, in their order.
type chain []outgoing

// prepare checks and encodes the messages. A refused one ends its chain.
func (p *publisher) prepare(topic string, msgs []*message.Message, errs []error) []chain {
	topicErr := envelope.ValidateTopic(topic)
	limits := envelope.Limits{MaxPayload: p.b.opts.MaxPayload}
	var all []chain
	place, refused := map[string]int{}, map[string]bool{}
	for i, msg := range msgs {
		key := msg.Metadata[envelope.OrderingKeyHeader]
		o, err := p.encode(i, msg, limits, topicErr)
		if err == nil && key != "" && refused[key] {
			err = errEarlier
		}
		if err != nil {
			errs[i], refused[key] = err, true
			continue
		}
		if at, known := place[key]; known && key != "" {
			all[at] = append(all[at], o)
			continue
		}
		place[key] = len(all)
		all = append(all, chain{o})
	}
	return all
}

func (p *publisher) encode(i int, msg *message.Message, limits envelope.Limits, topicErr error) (outgoing, error) {
	if topicErr != nil {
		return outgoing{}, topicErr
	}
	uuid := msg.UUID
	if uuid == "" {
		msg = envelope.Prepare(msg)
		uuid = msg.UUID
	}
	if err := envelope.ValidateMessage(msg, limits); err != nil {
		return outgoing{}, err
	}
	return encode(i, uuid, msg)
}

// fanOut sends the chains to every queue. Where a queue that was known is gone, it asks for the queues once more.
func (p *publisher) fanOut(ctx context.Context, topic string, chains []chain, errs []error) error {
	if len(chains) == 0 {
		return nil
	}
	for again := false; ; again = true {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		urls, err := p.b.queues.of(ctx, topic)
		if err != nil {
			return cut(ctx, err)
		}
		outcomes := p.sendAll(ctx, urls, chains, len(errs))
		if !again && anyNoQueue(outcomes) {
			p.b.queues.forget(topic)
			continue
		}
		for _, queue := range outcomes {
			for i, err := range queue {
				if err != nil {
					errs[i] = errors.Join(errs[i], err)
				}
			}
		}
		return nil
	}
}

// sendAll returns the errors of each queue, by message.
func (p *publisher) sendAll(ctx context.Context, urls []string, chains []chain, n int) [][]error {
	outcomes := make([][]error, len(urls))
	var wg sync.WaitGroup
	for at, url := range urls {
		d := &dispatch{p: p, url: url, errs: make([]error, n)}
		outcomes[at] = d.errs
		wg.Go(func() { d.run(ctx, chains) })
	}
	wg.Wait()
	return outcomes
}

func anyNoQueue(outcomes [][]error) bool {
	for _, queue := range outcomes {
		for _, err := range queue {
			if errors.Is(err, errNoQueue) {
				return true
			}
		}
	}
	return false
}

// cut names the reason where a context has ended.
func cut(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not confirmed, the outcome is unknown: %w", context.Cause(ctx))
	}
	return classify(err)
}

// dispatch sends chains to one queue, in rounds: each sends the next message of each chain, so that no message of an ordering
// key is on its way beside another one.
type dispatch struct {
	p    *publisher
	url  string
	errs []error // each index is written by one goroutine at a time
}

func (d *dispatch) run(ctx context.Context, chains []chain) {
	for len(chains) > 0 {
		var wg sync.WaitGroup
		round := make([]outgoing, len(chains))
		for i, c := range chains {
			round[i] = c[0]
		}
		for len(round) > 0 {
			n := fit(round)
			part := round[:n:n]
			round = round[n:]
			wg.Go(func() { d.send(ctx, part) })
		}
		wg.Wait()
		var left []chain
		for _, c := range chains {
			switch {
			case len(c) == 1:
			case d.errs[c[0].index] != nil:
				for _, o := range c[1:] {
					d.errs[o.index] = errEarlier
				}
			default:
				left = append(left, c[1:])
			}
		}
		chains = left
	}
}

// fit returns how many messages go into one request.
func fit(messages []outgoing) int {
	size := 0
	for i, o := range messages {
		size += o.size
		if i == maxBatch || i > 0 && size > maxMessage {
			return i
		}
	}
	return len(messages)
}

// send sends one request, and again what the service could not take for a reason of its own.
func (d *dispatch) send(ctx context.Context, part []outgoing) {
	pause := entryPause
	for attempt := 1; len(part) > 0; attempt++ {
		part = d.attempt(ctx, part)
		if attempt == entryAttempts || sleep(ctx, jitter(pause)) != nil {
			return // with the errors of the last attempt
		}
		pause *= 2
	}
}

// attempt notes the outcome of each message and returns those to be sent again.
func (d *dispatch) attempt(ctx context.Context, part []outgoing) (again []outgoing) {
	select {
	case d.p.slots <- struct{}{}:
		defer func() { <-d.p.slots }()
	case <-ctx.Done():
		d.fail(part, fmt.Errorf("not sent: %w", context.Cause(ctx)))
		return nil
	}
	out, err := d.request(ctx, part)
	switch {
	case err == nil:
		return d.outcomes(part, out)
	case tooLong(err) && len(part) > 1: // somebody in it is at fault
		for i := range part {
			one := part[i : i+1]
			if out, err = d.request(ctx, one); err != nil {
				d.fail(one, d.judge(ctx, err))
				continue
			}
			again = append(again, d.outcomes(one, out)...)
		}
		return again
	}
	d.fail(part, d.judge(ctx, err))
	return nil
}

func (d *dispatch) request(ctx context.Context, part []outgoing) (*sqs.SendMessageBatchOutput, error) {
	entries := make([]types.SendMessageBatchRequestEntry, len(part))
	for i, o := range part {
		entries[i] = types.SendMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(o.body), MessageAttributes: o.attributes,
			MessageGroupId: aws.String(o.group), MessageDeduplicationId: aws.String(o.dedupe),
		}
	}
	return d.p.b.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: aws.String(d.url), Entries: entries})
}

// outcomes notes what became of each entry.
func (d *dispatch) outcomes(part []outgoing, out *sqs.SendMessageBatchOutput) (again []outgoing) {
	answered := make([]error, len(part))
	for i := range answered {
		answered[i] = fmt.Errorf("%w: the service says nothing about the message", outbox.ErrUnavailable)
	}
	for _, ok := range out.Successful {
		if i, err := strconv.Atoi(aws.ToString(ok.Id)); err == nil && i < len(part) {
			answered[i] = nil
		}
	}
	for _, f := range out.Failed {
		i, err := strconv.Atoi(aws.ToString(f.Id))
		if err != nil || i >= len(part) {
			continue
		}
		reason := fmt.Errorf("the service refused it: %s", aws.ToString(f.Code))
		switch {
		case f.SenderFault && ofMessage(aws.ToString(f.Code)):
			answered[i] = fmt.Errorf("%w: %w", outbox.ErrUnpublishable, reason)
		case f.SenderFault:
			answered[i] = reason
		default:
			answered[i] = fmt.Errorf("%w: %w", outbox.ErrUnavailable, reason)
		}
	}
	for i, o := range part {
		d.errs[o.index] = answered[i]
		if errors.Is(answered[i], outbox.ErrUnavailable) {
			again = append(again, o)
		}
	}
	return again
}

// judge says what a refused request means for a message that was alone in it, or for all of them.
func (d *dispatch) judge(ctx context.Context, err error) error {
	switch {
	case noQueue(err):
		return fmt.Errorf("%w: %w: %s", outbox.ErrUnroutable, errNoQueue, d.url)
	case tooLong(err):
		return fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
	}
	return cut(ctx, err)
}

func (d *dispatch) fail(part []outgoing, err error) {
	for _, o := range part {
		d.errs[o.index] = err
	}
}
