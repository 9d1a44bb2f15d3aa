package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// sent is one message that the broker took.
type sent struct {
	topic, uuid, key, orderingKey string
	payload                       string
	metadata                      message.Metadata
	relay                         string
}

// broker is where the relays of a test publish to. It keeps the order of what it took, and refuses by rule.
type broker struct {
	mu    sync.Mutex
	took  []sent
	calls int
	// refuse decides for each message; nil takes everything. It is called under the broker's lock.
	refuse func(topic string, msg *message.Message) error
}

// publisher is one relay's connection to the broker.
type publisher struct {
	*broker
	relay string
	// ordered stops, within one call, at a refusal for the messages of that ordering key that follow.
	ordered bool
	// before is called before each batch, without the lock; it may block and fail the whole batch.
	before func(ctx context.Context, topic string, msgs []*message.Message) error
}

// PublishBatch takes each message that refuse lets through.
func (p *publisher) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := make([]error, len(msgs))
	if p.before != nil {
		if err := p.before(ctx, topic, msgs); err != nil {
			for i := range errs {
				errs[i] = err
			}
			return errs
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	stopped := map[string]bool{}
	for i, msg := range msgs {
		errs[i] = p.take(topic, msg, stopped)
	}
	return errs
}

func (p *publisher) take(topic string, msg *message.Message, stopped map[string]bool) error {
	orderingKey := msg.Metadata.Get(envelope.OrderingKeyHeader)
	if p.ordered && orderingKey != "" && stopped[orderingKey] {
		return fmt.Errorf("not sent: one before it was refused")
	}
	if p.refuse != nil {
		if err := p.refuse(topic, msg); err != nil {
			stopped[orderingKey] = true
			return err
		}
	}
	p.took = append(p.took, sent{
		topic: topic, uuid: msg.UUID, key: msg.Metadata.Get(envelope.KeyHeader), orderingKey: orderingKey,
		payload: string(msg.Payload), metadata: msg.Metadata, relay: p.relay,
	})
	return nil
}

// taken returns what the broker took so far, copies included.
func (b *broker) taken() []sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]sent(nil), b.took...)
}

// rule changes what the broker refuses.
func (b *broker) rule(refuse func(topic string, msg *message.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = refuse
}

// firsts returns the first copy of each message, in the order of the broker.
func (b *broker) firsts() []sent {
	seen := map[string]bool{}
	var out []sent
	for _, s := range b.taken() {
		if !seen[s.uuid] {
			seen[s.uuid] = true
			out = append(out, s)
		}
	}
	return out
}

// keys returns the keys of the first copies.
func (b *broker) keys() []string {
	var out []string
	for _, s := range b.firsts() {
		out = append(out, s.key)
	}
	return out
}

// relays returns the names of the relays that published something.
func (b *broker) relays() []string {
	var names []string
	for _, s := range b.taken() {
		if !slices.Contains(names, s.relay) {
			names = append(names, s.relay)
		}
	}
	return names
}
