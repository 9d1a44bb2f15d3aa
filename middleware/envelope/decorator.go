package envelope

import (
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PublisherOptions are the options of NewPublisher. Its zero value is useful.
type PublisherOptions struct {
	// Key composes the key of a message that has none, from what names the operation, such as
	//
	//	func(topic string, msg *message.Message) (string, error) {
	//		return envelope.Compose("order", msg.Metadata.Get("order-id"), "creation")
	//	}
	//
	// Where it is nil the key is a new UUID of version 7. Such a key removes this producer's
	// own repetitions of the same *message.Message only, not those of a restarted program; a composed one removes all.
	Key func(topic string, msg *message.Message) (string, error)
	// Limits are the limits of a message.
	Limits Limits
}

// Publisher gives each message the identities that the contract asks for, and checks it before any broker sees it.
type Publisher struct {
	next message.Publisher
	opts PublisherOptions
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher decorates any Watermill publisher, for programs that produce without the rest of Oncemill.
func NewPublisher(next message.Publisher, opts PublisherOptions) *Publisher {
	return &Publisher{next: next, opts: opts}
}

// Decorator is NewPublisher as a decorator for a Watermill router.
func Decorator(opts PublisherOptions) message.PublisherDecorator {
	return func(next message.Publisher) (message.Publisher, error) {
		return NewPublisher(next, opts), nil
	}
}

// Publish sets a missing UUID and key on the messages themselves, so that publishing the same message again after
// an error sends the same identities; a key that is there is kept. All messages are
// checked before the first is sent; the error of a bad one wraps a *Violation. Other errors are the publisher's, unchanged: after one the message may have been sent.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if err := ValidateTopic(topic); err != nil {
		return err
	}
	for _, msg := range messages {
		if err := p.identify(topic, msg); err != nil {
			return fmt.Errorf("message %q to %s: %w", msg.UUID, topic, err)
		}
	}
	return p.next.Publish(topic, messages...)
}

// Close closes the decorated publisher.
func (p *Publisher) Close() error { return p.next.Close() }

func (p *Publisher) identify(topic string, msg *message.Message) error {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	if msg.UUID == "" {
		msg.UUID = NewUUID()
	}
	if _, given := msg.Metadata[KeyHeader]; !given {
		key, err := p.key(topic, msg)
		if err != nil {
			return fmt.Errorf("composing the idempotency key: %w", err)
		}
		if err := ValidateKey(key); err != nil {
			return err
		}
		msg.Metadata[KeyHeader] = key
	}
	return ValidateMessage(msg, p.opts.Limits)
}

func (p *Publisher) key(topic string, msg *message.Message) (string, error) {
	if p.opts.Key == nil {
		return NewUUID(), nil
	}
	return p.opts.Key(topic, msg)
}

// Compose joins the parts of a key with '-', as in Compose("order", id, "creation"). A blank part is a *Violation: a
// key around an id that was not set would be shared by unrelated messages. With more than one part that varies, see to
// it that they have no '-' themselves: "a-b","c" and "a","b-c" are one key.
func Compose(parts ...string) (string, error) {
	for i, part := range parts {
		if isBlank(part) {
			return "", &Violation{RuleKeyEmpty, fmt.Sprintf("part %d of the key is empty or only white space", i+1)}
		}
	}
	key := strings.Join(parts, "-")
	if err := ValidateKey(key); err != nil {
		return "", err
	}
	return key, nil
}
