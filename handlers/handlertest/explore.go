package handlertest

import (
	"pgregory.net/rapid"
)

// Explore tries schedules that are drawn at random: several deliveries of each message to two replicas, several faults of every
// kind that Prove knows, time that passes, relays that end. After each it checks what Prove checks. A schedule that fails is
// shortened, and printed with the seed that repeats it. The flags are rapid's: -rapid.checks says how many schedules (100; a
// fifth of it with -short), -rapid.seed which.
func (k *Kit) Explore(invariant func(k *Kit), messages ...Message) {
	k.t.Helper()
	p, t := k.newProof(kinds, invariant, messages)
	if said := p.undisturbed(t); said != "" {
		t.Fatal("without a fault: " + said)
	}
	rapid.Check(t, func(rt *rapid.T) {
		if said := p.try(t, p.draw(rt)); said != "" {
			rt.Fatal(said)
		}
	})
	p.report(t)
}

// draw draws a schedule. What comes first is what a shortened one tends to.
func (p *proof) draw(rt *rapid.T) schedule {
	deepest := 1
	for _, steps := range p.steps {
		deepest = max(deepest, len(steps))
	}
	faults := rapid.Custom(func(rt *rapid.T) *fault {
		return &fault{Step: rapid.IntRange(1, deepest+2).Draw(rt, "step"), Kind: rapid.SampledFrom(p.kinds).Draw(rt, "kind")}
	})
	actions := rapid.Custom(func(rt *rapid.T) action {
		a := action{Do: rapid.SampledFrom([]string{deliver, deliver, deliver, publish, advance}).Draw(rt, "do")}
		if a.Do == advance {
			return a
		}
		a.Replica = rapid.IntRange(0, 1).Draw(rt, "replica")
		if a.Do == deliver {
			a.Message = rapid.IntRange(0, len(p.messages)-1).Draw(rt, "message")
		}
		if rapid.IntRange(0, 2).Draw(rt, "disturbed") > 0 {
			a.Fault = faults.Draw(rt, "fault")
		}
		return a
	})
	return rapid.SliceOfN(actions, 1, 3+2*len(p.messages)).Draw(rt, "schedule")
}
