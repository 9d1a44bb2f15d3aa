package envelope

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

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
	// Attempts is how often Publish sends before it returns the last error. Each attempt sends all messages of the call again, under
	// the same identities: those that the broker had already are copies, which the consumer removes. Defaults to 1.
	Attempts int
	// Wait is the pause before the second attempt. It doubles with each up to MaxWait, and up to half of it is taken off at random. Defaults to 100ms.
	Wait time.Duration
	// MaxWait is the longest pause. Defaults to 5s.
	MaxWait time.Duration
}

const (
	defaultWait    = 100 * time.Millisecond
	defaultMaxWait = 5 * time.Second
)

// Publisher gives each message the identities that the contract asks for, and checks it before any broker sees it.
type Publisher struct {
	next message.Publisher
	opts PublisherOptions
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher decorates any Watermill publisher, for programs that produce without the rest of Oncemill.
func NewPublisher(next message.Publisher, opts PublisherOptions) *Publisher {
	if opts.Wait <= 0 {
		opts.Wait = defaultWait
	}
	if opts.MaxWait <= 0 {
		opts.MaxWait = max(defaultMaxWait, opts.Wait)
	}
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
// checked before the first is sent; the error of a bad one wraps a *Violation. Other errors are the publisher's, unchanged: after one the message may have been
// sent, and sending it again is harmless where its consumer removes duplicates.
//
// With Attempts it does so itself. It gives up early when the context of one of the messages ends (its cause is joined to the error), or
// on an error that says it is permanent: a *Violation, or another with a method Permanent() string. It has no deadline of its own for a publisher that does not return.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if err := ValidateTopic(topic); err != nil {
		return err
	}
	for _, msg := range messages {
		if err := p.identify(topic, msg); err != nil {
			return fmt.Errorf("message %q to %s: %w", msg.UUID, topic, err)
		}
	}
	return p.send(topic, messages)
}

func (p *Publisher) send(topic string, messages []*message.Message) error {
	pause := p.opts.Wait
	for attempt := 1; ; attempt++ {
		err := p.next.Publish(topic, messages...)
		lasting := interface{ Permanent() string }(nil)
		if err == nil || attempt >= p.opts.Attempts || errors.As(err, &lasting) {
			return err
		}
		if ended := sleep(messages, pause-rand.N(pause/2+1)); ended != nil {
			return errors.Join(err, ended)
		}
		pause = min(2*pause, p.opts.MaxWait)
	}
}

// sleep waits for d, or returns why the context of a message ended before.
func sleep(messages []*message.Message, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	for _, msg := range messages {
		defer context.AfterFunc(msg.Context(), cancel)()
	}
	<-ctx.Done()
	for _, msg := range messages {
		if msg.Context().Err() != nil {
			return context.Cause(msg.Context())
		}
	}
	return nil
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
//
// Take what names the operation, and nothing that a second attempt changes: with the number of the attempt, the time of the sending or
// a random value in it, each attempt is a message of its own and has its own effect.
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
