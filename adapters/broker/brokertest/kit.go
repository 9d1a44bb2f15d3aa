package brokertest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// quiet is how long a test watches that something does not happen.
const quiet = 700 * time.Millisecond

// kit is what one test works with.
type kit struct {
	*testing.T
	h Harness

	rubbish *rubbish
}

func newKit(t *testing.T, h Harness) *kit {
	return &kit{T: t, h: h, rubbish: newRubbish(t)}
}

// rubbish collects what is removed when its test, and with it every broker opened in it, has ended.
type rubbish struct {
	mu      sync.Mutex
	removes []func()
}

// newRubbish must come before the test opens anything: cleanups run last to first.
func newRubbish(t *testing.T) *rubbish {
	r := &rubbish{}
	t.Cleanup(func() {
		for _, remove := range r.removes {
			remove()
		}
	})
	return r
}

func (r *rubbish) add(remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removes = append(r.removes, remove)
}

func (k *kit) open() broker.Broker {
	k.Helper()
	b := k.h.Open(k.T)
	k.Cleanup(func() { _ = b.Close() })
	return b
}

// declared opens a broker, and declares a new topic for the named groups.
func (k *kit) declared(groups ...string) (broker.Broker, string) {
	k.Helper()
	topic := k.name("bt")
	b := k.open()
	k.declare(b, topic, groups...)
	return b, topic
}

func (k *kit) declare(b broker.Broker, topic string, groups ...string) {
	k.Helper()
	k.declareAs(b, topic, false, groups...)
}

func (k *kit) declareAs(b broker.Broker, topic string, ordered bool, groups ...string) {
	k.Helper()
	subs := make([]broker.Subscription, len(groups))
	for i, group := range groups {
		subs[i] = broker.Subscription{Topic: topic, Group: group, Ordered: ordered}
	}
	if k.h.Remove != nil {
		k.rubbish.add(func() { k.h.Remove(k.T, topic, groups) })
	}
	require.NoError(k, b.Declare(within(k, k.h.patience()), topic, subs))
}

// name returns an unused name.
func (k *kit) name(prefix string) string { return prefix + "-" + token() }

func token() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// publish publishes messages with these payloads and returns their UUIDs.
func (k *kit) publish(b broker.Broker, topic string, payloads ...string) []string {
	k.Helper()
	msgs := make([]*message.Message, len(payloads))
	ids := make([]string, len(payloads))
	for i, payload := range payloads {
		msgs[i] = newMessage(payload)
		ids[i] = msgs[i].UUID
	}
	require.NoError(k, b.Publisher().Publish(topic, msgs...))
	return ids
}

func newMessage(payload string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte(payload))
	msg.Metadata.Set(envelope.KeyHeader, "key-"+msg.UUID)
	return msg
}

// numbered returns n payloads that differ.
func numbered(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return all
}

// reader reads one subscription.
type reader struct {
	k    *kit
	sub  broker.Subscriber
	msgs <-chan *message.Message
}

func (k *kit) subscribe(b broker.Broker, sub broker.Subscription) *reader {
	k.Helper()
	s, err := b.Subscriber(sub)
	require.NoError(k, err)
	msgs, err := s.Subscribe(k.Context(), sub.Topic)
	require.NoError(k, err)
	return &reader{k: k, sub: s, msgs: msgs}
}

// next returns the next message, which must come.
func (r *reader) next() *message.Message {
	r.k.Helper()
	select {
	case msg, open := <-r.msgs:
		require.True(r.k, open, "the channel closed before the message came")
		return msg
	case <-time.After(r.k.h.patience()):
		require.FailNow(r.k, "no message came")
		return nil
	}
}

// take returns the next n messages, unsettled.
func (r *reader) take(n int) []*message.Message {
	r.k.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = r.next()
	}
	return msgs
}

// ackUntil acks what comes until each of the payloads came; it returns how often each came.
func (r *reader) ackUntil(payloads ...string) map[string]int {
	r.k.Helper()
	missing := map[string]bool{}
	for _, payload := range payloads {
		missing[payload] = true
	}
	seen := map[string]int{}
	for len(missing) > 0 {
		msg := r.next()
		delete(missing, string(msg.Payload))
		seen[string(msg.Payload)]++
		require.True(r.k, msg.Ack())
	}
	return seen
}

// silent fails when a message comes.
func (r *reader) silent(why string) {
	r.k.Helper()
	select {
	case msg, open := <-r.msgs:
		if open {
			require.FailNow(r.k, "a message came: "+why, "payload %.40q", msg.Payload)
		}
	case <-time.After(quiet):
	}
}

// closed fails when the channel does not close; messages that come before are a failure.
func (r *reader) closed() {
	r.k.Helper()
	select {
	case msg, open := <-r.msgs:
		if open {
			require.FailNow(r.k, "a message came instead of the channel's end", "payload %.40q", msg.Payload)
		}
	case <-time.After(r.k.h.patience()):
		require.FailNow(r.k, "the channel stays open")
	}
}

// ended fails when the message's context does not end.
func (k *kit) ended(msg *message.Message, why string) {
	k.Helper()
	k.signalled(msg.Context().Done(), "the message's context stays alive after "+why)
}

func (k *kit) signalled(c <-chan struct{}, otherwise string) {
	k.Helper()
	select {
	case <-c:
	case <-time.After(k.h.patience()):
		require.FailNow(k, otherwise)
	}
}

// eventually polls until ok holds.
func (k *kit) eventually(ok func() bool, otherwise string) {
	k.Helper()
	require.Eventually(k, ok, k.h.patience(), 20*time.Millisecond, otherwise)
}

func payloadsOf(msgs []*message.Message) []string {
	all := make([]string, len(msgs))
	for i, msg := range msgs {
		all[i] = string(msg.Payload)
	}
	return all
}

func delivery(msg *message.Message) envelope.Delivery { return envelope.DeliveryFrom(msg.Context()) }
