package handlertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/parking"
)

// trial runs a schedule on a copy of a kit's database.
type trial struct {
	k        *Kit
	messages []Message
	pending  []int                    // messages that the broker still has
	reached  map[int]faultpoint.Point // where the faults of the schedule's actions fired
	steps    map[int][]step           // what each action passed
	doubted  bool                     // a message is in doubt, as its handler's policy says

	beside   sync.WaitGroup // deliveries to rivals
	mu       sync.Mutex     // guards reached, steps and returned while an action runs
	returned []int          // messages that rivals handed back
}

// begin copies the kit's database for a trial that reports to t.
func (k *Kit) begin(t *recorder, messages []Message, s schedule) *trial {
	c := k.copy(t)
	for _, a := range s {
		if a.Fault != nil && a.Fault.Kind == Deadline {
			c.timeout = hurry
		}
	}
	c.open()
	return &trial{k: c, messages: messages, reached: map[int]faultpoint.Point{}, steps: map[int][]step{}}
}

// hurry is the handlers' timeout where a fault is a deadline that passes.
const hurry = 300 * time.Millisecond

// run does what the schedule says, and then delivers everything until it is quiet.
func (tr *trial) run(s schedule) {
	given := map[int]bool{}
	for i, a := range s {
		if a.Do == deliver {
			given[a.Message] = true
		}
		tr.do(i, a)
	}
	for i := range tr.messages {
		if !given[i] {
			tr.pending = append(tr.pending, i)
		}
	}
	tr.beside.Wait()
	tr.pending = append(tr.pending, tr.returned...)
	for _, r := range tr.k.replicas() {
		r.breakAt(nil)
	}
	tr.settle()
}

func (tr *trial) do(i int, a action) {
	switch {
	case a.Fault != nil && a.Fault.Kind == Kill:
		tr.killed(i, a)
	case a.Do == deliver:
		tr.deliver(i, a)
	case a.Do == publish:
		tr.publish(i, a)
	default:
		tr.k.Advance(time.Hour)
	}
}

// deliver delivers a message as the schedule says.
func (tr *trial) deliver(i int, a action) {
	m := tr.messages[a.Message]
	r := tr.k.replicas()[a.Replica]
	r.breakAt(tr.hook(i, a))
	outcome := tr.k.deliver(r, m.To, tr.k.message(m.Key, m.Payload), false)
	r.breakAt(nil)
	if outcome == HandedBack {
		tr.pending = append(tr.pending, a.Message)
	}
}

// publish lets a relay publish what is in the outbox.
func (tr *trial) publish(i int, a action) {
	if err := tr.k.relay(tr.k.replicas()[a.Replica], tr.hook(i, a)); err != nil {
		tr.k.Advance(relayLease + time.Second) // a relay that ended so keeps its lanes until their lease is over
	}
}

// hook notes the steps that an action passes, and breaks the one that is to break.
func (tr *trial) hook(i int, a action) stepHook {
	return func(ctx context.Context, at step) error {
		if at.point == faultpoint.BeforeRenewal { // comes by the clock, and so at another place each time
			return nil
		}
		if !tr.breaks(i, a, at) {
			return nil
		}
		return tr.breakStep(ctx, a, at)
	}
}

// breaks notes a step that an action passes, and reports whether it is the one to break. A handler that overran its deadline may still pass steps
// beside those of its next attempt.
func (tr *trial) breaks(i int, a action, at step) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.steps[i] = append(tr.steps[i], at)
	if a.Fault == nil || len(tr.steps[i]) != a.Fault.Step || !at.can(a.Fault.Kind) {
		return false
	}
	tr.reached[i] = at.point
	return true
}

// settle delivers what the broker still has, and lets time pass, until nothing is pending and nothing waits.
func (tr *trial) settle() {
	const rounds = 20
	for range rounds {
		again := tr.pending
		tr.pending = nil
		for _, message := range again {
			m := tr.messages[message]
			if tr.k.deliver(tr.k.two, m.To, tr.k.message(m.Key, m.Payload), true) == HandedBack {
				tr.pending = append(tr.pending, message)
			}
		}
		if len(tr.pending) == 0 && len(tr.k.parked(parking.Waiting)) == 0 {
			return
		}
		tr.k.Advance(time.Hour)
	}
	tr.k.t.Errorf("messages are not settled after %d more rounds%s", rounds, tr.k.reasons())
}

// retention is for how long the plugin's keys are kept.
func retention(p handlers.Plugin) time.Duration { return cmp.Or(p.Retention, 7*24*time.Hour) }

// ending is what an undisturbed run leaves, and every other one has to leave, too.
type ending struct {
	keys map[string]string // states, by scope and key
	dead []string          // dead letters: key and reason
	out  map[string]int    // messages that went out, by topic
}

// finish checks what holds for every handler: another delivery changes nothing, no key is left in progress, the outbox gets empty,
// and each message went out under one identity. It returns what is left for a comparison.
func (tr *trial) finish() ending {
	k := tr.k
	k.t.Helper()
	k.Advance(min(time.Hour, retention(k.plugin)/2)) // a producer sends again later, too
	before := k.snapshot()
	for _, m := range tr.messages {
		if outcome := k.deliver(k.one, m.To, k.message(m.Key, m.Payload), false); outcome == HandedBack {
			k.t.Errorf("another delivery of %s was handed back to the broker", m.Key)
		}
	}
	k.unchanged(before, "another delivery")
	if err := k.relay(k.two, nil); err != nil {
		k.t.Errorf("the relay does not empty the outbox: %v", err)
	}
	e := ending{keys: map[string]string{}, out: map[string]int{}}
	for _, m := range tr.messages {
		scope := scope(k.find(m.To))
		state := k.state(scope, m.Key)
		e.keys[scope+" "+m.Key] = state
		tr.doubted = tr.doubted || state == "in_doubt"
	}
	for _, row := range k.parked(parking.Dead) {
		e.dead = append(e.dead, row.Key+": "+row.Reason)
	}
	slices.Sort(e.dead)
	for _, p := range k.sent() {
		e.out[p.Topic]++
	}
	return e
}

// compare checks that a disturbed run ended as the undisturbed one.
func (tr *trial) compare(got, want ending) {
	k := tr.k
	k.t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want.keys)) {
		if got.keys[key] != want.keys[key] {
			k.t.Errorf("key %s is %s, without a fault it is %s%s", key, got.keys[key], want.keys[key], k.reasons())
		}
	}
	if !slices.Equal(got.dead, want.dead) {
		k.t.Errorf("dead letters are %q, without a fault %q%s", got.dead, want.dead, k.reasons())
	}
	if !maps.Equal(got.out, want.out) {
		k.t.Errorf("messages that went out, by topic: %v, without a fault %v", got.out, want.out)
	}
}

// state is that of a key, as the database says.
func (k *Kit) state(scope, key string) string {
	k.t.Helper()
	var states []string
	query := k.DB().Rebind(`SELECT status FROM processed_events WHERE scope = ? AND idempotency_key = ?`)
	if err := k.DB().SelectContext(k.t.Context(), &states, query, scope, key); err != nil {
		k.t.Fatalf("handlertest: reading the key %s: %v", key, err)
	}
	if len(states) == 0 {
		return "absent"
	}
	return fmt.Sprint(states[0])
}
