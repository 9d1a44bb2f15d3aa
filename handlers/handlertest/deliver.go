package handlertest

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Deliver delivers a message with that idempotency key, and returns what became of it. to is the binding's topic, or its name
// where the plugin has two bindings on one topic. payload is a []byte as it is, a *message.Message, or anything that becomes JSON.
func (k *Kit) Deliver(to, key string, payload any) Outcome {
	k.t.Helper()
	return k.deliver(k.one, to, k.message(key, payload), false)
}

// DeliverTwice delivers a message, and then its copy, as a producer that sends twice does. The first has to be completed; the
// copy must change nothing: no row of the plugin's, no message, no dead letter.
func (k *Kit) DeliverTwice(to, key string, payload any) {
	k.t.Helper()
	if outcome := k.Deliver(to, key, payload); outcome != Completed {
		k.t.Fatalf("the first delivery of %s was %s, want %s%s", key, outcome, Completed, k.reasons())
	}
	before := k.snapshot()
	if outcome := k.Deliver(to, key, payload); outcome != Duplicate {
		k.t.Errorf("the second delivery of %s was %s, want %s%s", key, outcome, Duplicate, k.reasons())
	}
	k.unchanged(before, "the second delivery of "+key)
}

// DeliverToRivals delivers copies of a message to two replicas at the same moment. One of them completes it; the other finds
// a duplicate, or parks its copy until that is known, which Advance settles.
func (k *Kit) DeliverToRivals(to, key string, payload any) {
	k.t.Helper()
	var outcomes [2]Outcome
	var together sync.WaitGroup
	for i, r := range []*replica{k.one, k.two} {
		msg := k.message(key, payload)
		together.Go(func() { outcomes[i] = k.deliver(r, to, msg, false) })
	}
	together.Wait()
	k.Advance(time.Minute)
	completed := 0
	for _, outcome := range outcomes {
		if outcome == Completed {
			completed++
		}
	}
	if completed != 1 {
		k.t.Errorf("the rivals' deliveries of %s were %s and %s: one of them has to be %s%s", key, outcomes[0], outcomes[1], Completed, k.reasons())
	}
}

func (k *Kit) deliver(r *replica, to string, msg *message.Message, redelivered bool) (outcome Outcome) {
	k.t.Helper()
	defer func() {
		if p := recover(); p == any(panicked{}) {
			outcome = HandedBack // a broker gets no ack from a process that panics
		} else if p != nil {
			panic(p)
		}
		if outcome == HandedBack && acked(msg) {
			outcome = ""
		}
	}()
	scope := scope(k.find(to))
	ctx, cancel := k.context()
	defer cancel()
	msg.SetContext(envelope.WithDelivery(ctx, envelope.Delivery{Broker: "handlertest", Redelivered: redelivered}))
	if err := r.engines[scope].Process(msg); err != nil {
		return HandedBack
	}
	return r.latest(scope)
}

// acked reports that the broker got an ack, whatever became of the message.
func acked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}

// find returns the binding of that name or topic.
func (k *Kit) find(to string) handlers.Binding {
	k.t.Helper()
	var found []handlers.Binding
	var names []string
	for _, b := range k.bindings {
		if b.Name == to {
			return b
		}
		if b.Topic == to {
			found = append(found, b)
		}
		names = append(names, b.Name+" on "+b.Topic)
	}
	if len(found) != 1 {
		k.t.Fatalf("handlertest: %d bindings are on %q: name one of %s", len(found), to, strings.Join(names, ", "))
	}
	return found[0]
}

func (k *Kit) message(key string, payload any) *message.Message {
	k.t.Helper()
	var msg *message.Message
	switch p := payload.(type) {
	case *message.Message:
		msg = p.Copy()
	case []byte:
		msg = message.NewMessage(uuid.NewString(), p)
	default:
		body, err := json.Marshal(payload)
		if err != nil {
			k.t.Fatalf("handlertest: payload as JSON: %v", err)
		}
		msg = message.NewMessage(uuid.NewString(), body)
	}
	msg.Metadata.Set(envelope.KeyHeader, key)
	return msg
}

// Advance moves the database's clock forward by d, removes the keys that are past their retention, and runs what
// was parked and is due.
func (k *Kit) Advance(d time.Duration) {
	k.t.Helper()
	k.pass(d)
	ctx, cancel := k.context()
	defer cancel()
	for scope := range k.one.engines {
		if _, err := k.db.Keys().Clean(ctx, scope, 1000); err != nil {
			k.t.Fatalf("handlertest: removing old keys: %v", err)
		}
	}
	if err := k.one.runDue(ctx); err != nil {
		k.t.Fatalf("handlertest: running what is due: %v", err)
	}
}

// pass moves the database's clock forward, and nothing else happens.
func (k *Kit) pass(d time.Duration) {
	k.t.Helper()
	if err := k.place.advance(k.t.Context(), d); err != nil {
		k.t.Fatalf("handlertest: moving the clock: %v", err)
	}
}
