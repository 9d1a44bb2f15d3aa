package proof

import (
	"context"
	"slices"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// discover runs one message through each binding and notes which steps it comes by, and whose handler publishes.
func (t *Trial) discover(ctx context.Context) error {
	on, off := true, false
	t.toAll(Order{Trace: &on})
	for _, b := range t.cfg.Plan.Bindings {
		c := t.cue(b.Name, 0)
		if c.empty() {
			continue
		}
		if err := t.perform(ctx, c, 0); err != nil {
			return err
		}
	}
	if err := t.calm(ctx); err != nil {
		return err
	}
	t.toAll(Order{Trace: &off})
	events := t.rec.Events()
	for _, b := range t.cfg.Plan.Bindings {
		t.steps[b.Name] = map[faultpoint.Point]bool{}
		for _, e := range events {
			if e.Kind == history.Step && e.Scope == b.Scope {
				t.steps[b.Name][faultpoint.Point(e.Point)] = true
			}
		}
		if t.source == "" && t.publishes(b, events) {
			t.source = b.Name
		}
	}
	return nil
}

// publishes reports whether the handler of a binding published something for the binding's first message.
func (t *Trial) publishes(b history.Binding, events []history.Event) bool {
	const most = 16 // messages of one handler
	var keys []string
	for n := range most {
		keys = append(keys, envelope.DeriveKey(b.Scope, keyOf(b.Name, 0), n))
	}
	return slices.ContainsFunc(events, func(e history.Event) bool { return e.Kind == history.Emitted && slices.Contains(keys, e.Key) })
}
