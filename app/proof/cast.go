package proof

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Cast is what a trial plays: the messages that it sends, and what they have to leave. [Builtin] and [Own] make one.
type Cast interface {
	// Bindings take part, with their topics and what each leaves for a key. Scopes and policies are the configuration's.
	Bindings() []history.Binding
	// Topics are all that the bindings receive from or publish to.
	Topics() []string
	// Plugins are the names of those that take part.
	Plugins() []string

	// cues are the bindings that have messages, each as often as the random part is to choose it.
	cues() []string
	// cue makes the nth message that makes a binding run. scope names the scopes.
	cue(binding string, n int, scope func(binding string) string) cue
	// opening are the messages that have to be handled before all others.
	opening() []cue
	// readings are the effects in the database.
	readings() []reading
	// check judges the database by itself; completed reports whether a key is.
	check(ctx context.Context, db *sqlx.DB, sent []cue, completed func(binding, key string) bool) []history.Event
}

// cue is a message that makes a binding run.
type cue struct {
	binding    string
	n          int
	topic, key string
	body       any
	// target is the key that the binding receives: the message's own, or that of a message which is published for it.
	target string
}

// empty reports that there is no such message.
func (c cue) empty() bool { return c.body == nil }

// keyOf is the key of the nth message for a binding.
func keyOf(binding string, n int) string { return fmt.Sprintf("%s-%06d", binding, n) }

// topicsOf are the topics of bindings and others, each once.
func topicsOf(bindings []history.Binding, others ...string) (topics []string) {
	seen := map[string]bool{}
	add := func(topic string) {
		if !seen[topic] {
			seen[topic] = true
			topics = append(topics, topic)
		}
	}
	for _, topic := range others {
		add(topic)
	}
	for _, b := range bindings {
		add(b.Topic)
	}
	return topics
}

// cue makes the nth message for a binding.
func (t *Trial) cue(binding string, n int) cue {
	c := t.cfg.Cast.cue(binding, n, func(name string) string { return t.scopes[name].Scope })
	c.binding, c.n = binding, n
	return c
}

// open publishes what has to be handled first, and waits for that.
func (t *Trial) open(ctx context.Context) error {
	for _, c := range t.cfg.Cast.opening() {
		if err := t.perform(ctx, c, 0); err != nil {
			return err
		}
	}
	return t.calm(ctx)
}

// calm waits until everything is settled, before anything is broken.
func (t *Trial) calm(ctx context.Context) error {
	ok, err := t.settle(ctx, t.beginning())
	if err == nil && !ok {
		err = fmt.Errorf("the first messages did not settle within %s, before anything was broken; the replicas' logs are in %s", t.beginning(), t.cfg.Dir)
	}
	return err
}

// perform publishes a cue, and the same message so many times more: as a client library that sends again, and as a producer that has forgotten that it sent.
func (t *Trial) perform(ctx context.Context, c cue, copies int) error {
	msg, err := newMessage(c.key, c.body)
	if err != nil {
		return err
	}
	for n := range 1 + copies {
		again, what := msg.Copy(), history.Original
		if n > 0 {
			what = history.Copy
		}
		if n%2 == 1 {
			again.UUID = envelope.NewUUID()
		}
		if err := t.publish(ctx, c.topic, again, what); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = append(t.sent, c)
	return nil
}

// forge publishes another payload under the key that the binding has received.
func (t *Trial) forge(ctx context.Context, binding string, c cue) error {
	msg, err := newMessage(c.target, map[string]string{"forged": c.target})
	if err != nil {
		return err
	}
	return t.publish(ctx, t.scopes[binding].Topic, msg, history.Forgery)
}

func newMessage(key string, body any) (*message.Message, error) {
	payload, raw := body.([]byte)
	if !raw {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("write a message: %w", err)
		}
	}
	msg := message.NewMessage(envelope.NewUUID(), payload)
	msg.Metadata.Set(envelope.KeyHeader, key)
	return msg, nil
}
