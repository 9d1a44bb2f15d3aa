package proof

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Worker is the part of a replica that watches it and breaks it. Its methods are what the application is given to call.
type Worker struct {
	Start Start
	// Database, Broker and Keys are what the connections go through.
	Database, Broker, Keys Line

	orders *json.Decoder
	armory *armory

	mu      sync.Mutex
	reports *json.Encoder
}

// NewWorker reads the first order.
func NewWorker(orders io.Reader, reports io.Writer) (*Worker, error) {
	w := &Worker{orders: json.NewDecoder(orders), reports: json.NewEncoder(reports)}
	var first Order
	if err := w.orders.Decode(&first); err != nil {
		return nil, fmt.Errorf("read the first order: %w", err)
	}
	if first.Start == nil {
		return nil, errors.New("the first order does not say how to start: this command is for \"prove\" itself")
	}
	w.Start = *first.Start
	w.armory = newArmory(w.report, w.Start.Hang, func(line string) bool {
		if !slices.Contains(w.Start.Lines, line) {
			return false
		}
		w.line(line).Break()
		return true
	})
	return w, nil
}

// report writes one line at once, so that what was said is kept when the process is killed.
func (w *Worker) report(r Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.reports.Encode(r) // a director that is gone ends this process by its orders' end
}

func (w *Worker) event(e history.Event) {
	e.At = time.Now()
	w.report(Report{Event: &e})
}

// Ready says that the replica consumes.
func (w *Worker) Ready() { w.report(Report{Ready: true}) }

// Obey takes orders until the one to stop. An error says that the director is gone.
func (w *Worker) Obey() error {
	for {
		var o Order
		if err := w.orders.Decode(&o); err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		if o.Stop {
			return nil
		}
		w.armory.disarm(o.Disarm)
		w.armory.arm(o.Arm)
		if o.Trace != nil {
			w.armory.traced(*o.Trace)
		}
		if o.GoOn != 0 {
			w.armory.goOn(o.GoOn)
		}
		if o.Cut != nil {
			w.line(o.Cut.Line).Cut(o.Cut.For)
		}
	}
}

func (w *Worker) line(name string) *Line {
	switch name {
	case LineDatabase:
		return &w.Database
	case LineBroker:
		return &w.Broker
	}
	return &w.Keys
}

// Engine and Relay are the hooks of engines and relay.
func (w *Worker) Engine(ctx context.Context, at faultpoint.Point) error {
	return w.armory.engine(ctx, at)
}

// Relay is the relay's hook.
func (w *Worker) Relay(ctx context.Context, at faultpoint.Point) error {
	return w.armory.relay(ctx, at)
}

// Observe reports the events of engines.
func (w *Worker) Observe(e idempotency.Event) {
	w.event(history.Event{Kind: history.Engine, Scope: e.Scope, Key: e.Key, What: string(e.Kind), Reason: e.Reason})
}

// Subscriber reports what is delivered and how it is settled.
func (w *Worker) Subscriber(scope string, sub message.Subscriber) message.Subscriber {
	return watched{sub, scope, w}
}

type watched struct {
	message.Subscriber
	scope string
	w     *Worker
}

// Subscribe implements message.Subscriber.
func (s watched) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			e := history.Event{Kind: history.Delivered, Scope: s.scope, Key: msg.Metadata.Get(envelope.KeyHeader), UUID: msg.UUID}
			s.w.event(e)
			go s.settled(msg, e)
			out <- msg
		}
	}()
	return out, nil
}

func (s watched) settled(msg *message.Message, e history.Event) {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	case <-msg.Context().Done(): // settled, or taken away
	}
	select {
	case <-msg.Acked():
		e.Kind = history.Acked
	case <-msg.Nacked():
		e.Kind = history.Nacked
	default:
		return
	}
	s.w.event(e)
}

// Publisher reports what the relay publishes.
func (w *Worker) Publisher(p outbox.Publisher) outbox.Publisher { return emitting{p, w} }

type emitting struct {
	outbox.Publisher
	w *Worker
}

// PublishBatch implements outbox.Publisher.
func (p emitting) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	errs := p.Publisher.PublishBatch(ctx, topic, msgs)
	for i, msg := range msgs {
		if i < len(errs) && errs[i] != nil {
			continue
		}
		p.w.event(history.Event{
			Kind: history.Emitted, Topic: topic, Key: msg.Metadata.Get(envelope.KeyHeader), UUID: msg.UUID, Print: printOf(msg.Payload),
		})
	}
	return errs
}
