package proof

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// way is how a message gets to a step.
type way string

const (
	wayHandled way = "handled" // it is run
	wayParked  way = "parked"  // it fails until it is parked
	wayDead    way = "dead"    // it is another payload under a used key
	wayRelay   way = "relay"   // what it publishes goes through the relay
)

// Relayed stands for the relay where bindings are named.
const Relayed = "relay"

// wayOf is how the steps that are not on every message's way are reached.
func wayOf(at faultpoint.Point) way {
	switch at {
	case faultpoint.BeforeParking, faultpoint.Parked:
		return wayParked
	case faultpoint.BeforeDeadLetter, faultpoint.DeadLetterWritten:
		return wayDead
	case faultpoint.OutboxRead, faultpoint.PublishedBeforeMarked, faultpoint.Marked:
		return wayRelay
	}
	return wayHandled
}

// pair is one fault at one step of one binding.
type pair struct {
	Binding string
	Point   faultpoint.Point
	Fault   Fault

	cue   cue
	arms  []int // the last one is the pair's own
	fired bool
	tries int
}

// deadly reports that the fault ends a process.
func (p *pair) deadly() bool {
	return ends(history.Event{What: string(p.Fault), Point: string(p.Point)})
}

// Untried is a step, or a fault at a step, that is not tried, and why.
type Untried struct {
	Binding string           `json:"binding"`
	Point   faultpoint.Point `json:"point"`
	Fault   Fault            `json:"fault,omitempty"` // empty: none of them
	Why     string           `json:"why"`
}

// Choice narrows the matrix; an empty list is everything.
type Choice struct {
	Bindings []string
	Points   []faultpoint.Point
	Faults   []Fault
}

func takes[T comparable](list []T, one T) bool { return len(list) == 0 || slices.Contains(list, one) }

// Matrix tries every fault at every step of every binding. It returns the pairs that were tried and those that cannot be.
func (t *Trial) Matrix(ctx context.Context, choice Choice) (Tried, []Untried, error) {
	pairs, untried := t.pairs(choice)
	tried := Tried{}
	for _, p := range pairs {
		tried.add(p.Point, p.Fault, 0)
	}
	const most = 5 // a pair that another one's crash has spoilt
	todo := pairs
	for try := 1; try <= most && len(todo) > 0; try++ {
		if try > 1 {
			t.cfg.Say("  %d pairs did not come to their step, because of others' faults: again", len(todo))
		}
		if err := t.waves(ctx, todo, try); err != nil {
			return tried, untried, err
		}
		todo = slices.DeleteFunc(slices.Clone(todo), func(p *pair) bool { return p.fired })
	}
	for _, p := range pairs {
		if p.fired {
			tried.add(p.Point, p.Fault, 1)
		}
	}
	for _, p := range todo {
		untried = append(untried, Untried{p.Binding, p.Point, p.Fault, fmt.Sprintf("the step was not reached in %d tries", most)})
	}
	return tried, untried, nil
}

// pairs lists what is tried and what cannot be.
func (t *Trial) pairs(choice Choice) (pairs []*pair, untried []Untried) {
	for _, b := range t.cfg.Plan.Bindings {
		if !takes(choice.Bindings, b.Name) {
			continue
		}
		if t.cue(b.Name, 0).empty() {
			untried = append(untried, Untried{Binding: b.Name, Point: faultpoint.Received, Why: "the trial has no message for this binding, which receives what others publish"})
			continue
		}
		for _, at := range faultpoint.Engine() {
			if !takes(choice.Points, at) {
				continue
			}
			if why := unreachable(b, at, t.steps[b.Name]); why != "" {
				untried = append(untried, Untried{Binding: b.Name, Point: at, Why: why})
				continue
			}
			for _, f := range Faults() {
				switch {
				case !takes(choice.Faults, f):
				case at == faultpoint.Answering && (f == FaultError || f == FaultCut):
					untried = append(untried, Untried{b.Name, at, f, "a call that has had its effect and says that it failed is its provider's fault; a lost answer is panic, deadline and kill"})
				default:
					pairs = append(pairs, &pair{Binding: b.Name, Point: at, Fault: f})
				}
			}
		}
	}
	if !takes(choice.Bindings, Relayed) {
		return pairs, untried
	}
	for _, at := range faultpoint.Relay() {
		if t.source == "" {
			untried = append(untried, Untried{Binding: Relayed, Point: at, Why: "no handler published anything"})
			continue
		}
		for _, f := range Faults() {
			switch {
			case !takes(choice.Points, at) || !takes(choice.Faults, f):
			case f == FaultRival:
				untried = append(untried, Untried{Relayed, at, f, "the relay works on batches: there is no one message that could have a rival; the replicas' relays are rivals of each other all the time"})
			default:
				pairs = append(pairs, &pair{Binding: Relayed, Point: at, Fault: f})
			}
		}
	}
	return pairs, untried
}

// unreachable says why a binding's messages do not come by a step.
func unreachable(b history.Binding, at faultpoint.Point, reached map[faultpoint.Point]bool) string {
	switch at {
	case faultpoint.BeforeParking, faultpoint.Parked, faultpoint.BeforeDeadLetter, faultpoint.DeadLetterWritten:
		return "" // made to be reached
	case faultpoint.BeforeRenewal:
		if b.External {
			return ""
		}
	}
	switch {
	case reached[at]:
		return ""
	case b.External && at == faultpoint.AfterClaim:
		return "an external handler takes a lease instead of a claim: see lease-acquired"
	case !b.External && external(at):
		return "a transactional handler has no lease and makes no outside call"
	case at == faultpoint.BeforeStatement:
		return "all statements of this handler are deferred: they are sent together when it has returned, and the step before them is the one after the claim or the call"
	}
	return "a message of this binding did not come by it"
}

// external reports a step of external handlers alone.
func external(at faultpoint.Point) bool {
	return at == faultpoint.LeaseAcquired || at == faultpoint.BeforeRenewal || at == faultpoint.Answering || at == faultpoint.Called
}

// How many pairs are under way at once: those that end a process spoil each other.
const (
	waveHarmless = 36
	waveDeadly   = 16
)

// waves tries the pairs, wave by wave.
func (t *Trial) waves(ctx context.Context, pairs []*pair, try int) error {
	var deadly, harmless []*pair
	for _, p := range pairs {
		if p.deadly() {
			deadly = append(deadly, p)
		} else {
			harmless = append(harmless, p)
		}
	}
	done := 0
	for _, group := range []struct {
		pairs []*pair
		size  int
	}{{harmless, waveHarmless}, {deadly, waveDeadly}} {
		for wave := range slices.Chunk(group.pairs, group.size) {
			if err := t.wave(ctx, wave, try); err != nil {
				return err
			}
			done += len(wave)
			t.cfg.Say("  %4d of %d pairs  faults %d  delivered %d  completed %d  duplicates %d  fell %d", done, len(pairs), t.rec.Count("fault"),
				t.rec.Count("delivered"), t.rec.Count("engine completed"), t.rec.Count("engine duplicate"), t.rec.Count("process fell"))
		}
	}
	return nil
}

// wave tries some pairs at once, and waits until everything is settled.
func (t *Trial) wave(ctx context.Context, wave []*pair, try int) error {
	var dead []*pair
	for _, p := range wave {
		t.mu.Lock()
		t.number++
		n := t.number
		t.mu.Unlock()
		p.tries, p.cue = try, t.cue(t.plays(p), n)
		if wayOf(p.Point) == wayDead {
			dead = append(dead, p)
			if err := t.perform(ctx, p.cue, 0); err != nil {
				return err
			}
		}
	}
	if len(dead) > 0 { // the key must be used before it is used again
		if _, err := t.settle(ctx, t.cfg.Patience); err != nil {
			return err
		}
	}
	for _, p := range wave {
		p.arms = t.arm(t.armsOf(p)...)
		var err error
		if wayOf(p.Point) == wayDead {
			err = t.forge(ctx, t.plays(p), p.cue)
		} else {
			err = t.perform(ctx, p.cue, 0)
		}
		if err != nil {
			return err
		}
	}
	if err := t.fire(ctx, wave); err != nil {
		return err
	}
	_, err := t.settle(ctx, t.cfg.Patience)
	return err
}

// plays is the binding whose message a pair needs.
func (t *Trial) plays(p *pair) string {
	if p.Binding == Relayed {
		return t.source
	}
	return p.Binding
}

// armsOf returns what brings a message to the step, and then the fault.
func (t *Trial) armsOf(p *pair) []Arm {
	if p.Binding == Relayed {
		return []Arm{{Point: p.Point, Kind: p.Fault}}
	}
	scope := t.scopes[p.Binding].Scope
	own := Arm{Point: p.Point, Scope: scope, Key: p.cue.target, Kind: p.Fault}
	switch {
	case wayOf(p.Point) == wayParked: // it fails until the engine parks it
		return []Arm{{Point: faultpoint.BeforeClaim, Scope: scope, Key: p.cue.target, Kind: FaultError, Times: 6}, own}
	case p.Point == faultpoint.BeforeRenewal: // the call takes until the lease is renewed
		return []Arm{{Point: faultpoint.Called, Scope: scope, Key: p.cue.target, Kind: hold}, own}
	}
	return []Arm{own}
}

// fire waits until every pair of a wave has fired, or everything is settled without that, and takes the arms that are left away.
func (t *Trial) fire(ctx context.Context, wave []*pair) error {
	quiet := 0
	err := t.until(ctx, t.cfg.Patience, "the faults have fired", func(ctx context.Context) (bool, error) {
		all := true
		for _, p := range wave {
			if !p.fired && t.hasFired(p.arms[len(p.arms)-1]) {
				p.fired = true
				t.disarm(p.arms...)
			}
			all = all && p.fired
		}
		if all || t.rec.silence() < 2*time.Second {
			quiet = 0
			return all, nil
		}
		if missing, err := t.missing(ctx); err != nil || missing != "" {
			quiet = 0
			return false, nil // the database may be away: by a fault
		}
		quiet++
		return quiet > 5, nil
	})
	for _, p := range wave {
		t.disarm(p.arms...)
	}
	if ctx.Err() == nil {
		return nil // what did not fire is tried again, or named
	}
	return err
}
