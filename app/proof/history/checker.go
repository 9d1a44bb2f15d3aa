package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// place is a key in a scope.
type place struct{ scope, key string }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.scope, q.scope), cmp.Compare(p.key, q.key))
}

// fact is what a history says of one key in one scope.
type fact struct {
	state       string
	effects     map[string]int64
	letters     int
	acked       bool
	completions int
	doubts      int // how often a call's outcome was not known
}

func (f *fact) names() string {
	return strings.Join(slices.Sorted(maps.Keys(f.effects)), ", ")
}

// posted is a message by topic and key.
type posted struct{ topic, key string }

// forged is a second payload under a used key, as one binding receives it.
type forged struct {
	at    place
	print string
}

type checker struct {
	events  []Event
	plan    *Plan
	byScope map[string]Binding
	byTopic map[string][]Binding

	facts     map[place]*fact
	expected  map[place]bool // true: it must be handled; false: it may be
	owed      map[posted]Output
	emitted   map[posted][]Event
	parked    []Event
	forgeries map[forged]bool // true: it was confirmed

	verdict Verdict
}

func newChecker(events []Event) *checker {
	c := &checker{
		events: events, plan: events[0].Plan, byScope: map[string]Binding{}, byTopic: map[string][]Binding{},
		facts: map[place]*fact{}, expected: map[place]bool{}, owed: map[posted]Output{}, emitted: map[posted][]Event{}, forgeries: map[forged]bool{},
	}
	for _, b := range c.plan.Bindings {
		c.byScope[b.Scope] = b
		c.byTopic[b.Topic] = append(c.byTopic[b.Topic], b)
	}
	return c
}

func (c *checker) fact(at place) *fact {
	f := c.facts[at]
	if f == nil {
		f = &fact{effects: map[string]int64{}}
		c.facts[at] = f
	}
	return f
}

// read sorts the events by what they are about.
func (c *checker) read() {
	for _, e := range c.events {
		at := place{e.Scope, e.Key}
		switch e.Kind {
		case Sent, Confirmed:
			c.post(e)
		case Acked:
			c.fact(at).acked = true
		case Engine:
			switch e.What {
			case "completed":
				c.fact(at).completions++
			case "takeover", "lease_lost", "retried", "parked":
				c.fact(at).doubts++
			}
		case Letter:
			c.fact(at).letters++
		case KeyState:
			c.fact(at).state = e.What
		case Effect:
			c.fact(at).effects[e.What] += e.Count
		case Parked:
			c.parked = append(c.parked, e)
		case Emitted:
			p := posted{e.Topic, e.Key}
			c.emitted[p] = append(c.emitted[p], e)
		}
	}
}

// post notes who must, or may, handle a published message.
func (c *checker) post(e Event) {
	for _, b := range c.byTopic[e.Topic] {
		at := place{b.Scope, e.Key}
		if e.What == Forgery {
			f := forged{at, e.Print}
			c.forgeries[f] = c.forgeries[f] || e.Kind == Confirmed
			continue
		}
		c.expected[at] = c.expected[at] || e.Kind == Confirmed
	}
}

// expectOutputs notes what effects have to publish, and who must handle that.
func (c *checker) expectOutputs() {
	for _, e := range c.events {
		if e.Kind != Effect {
			continue
		}
		for _, o := range e.Outputs {
			p := posted{o.Topic, o.Key}
			if first, taken := c.owed[p]; taken && first != o {
				c.brokenTopic(Identity, o.Key, "two effects publish it under one key, as messages %s and %s", first.UUID, o.UUID)
			}
			c.owed[p] = o
			for _, b := range c.byTopic[o.Topic] {
				c.expected[place{b.Scope, o.Key}] = true
			}
		}
	}
}

// expectEmitted notes who must handle what was published, where effects do not say it.
func (c *checker) expectEmitted() {
	if !c.plan.Open {
		return
	}
	for p, copies := range c.emitted {
		c.owed[p] = Output{Topic: p.topic, Key: p.key, UUID: copies[0].UUID}
		for _, b := range c.byTopic[p.topic] {
			c.expected[place{b.Scope, p.key}] = true
		}
	}
}

// outputs judges what the relay published.
func (c *checker) outputs() {
	for p, copies := range c.emitted {
		owed, known := c.owed[p]
		if !known {
			c.brokenTopic(Invented, p.key, "message %s was published to %s, and no effect has to publish it", copies[0].UUID, p.topic)
			continue
		}
		for _, e := range copies {
			if e.UUID != owed.UUID || e.Print != copies[0].Print {
				c.brokenTopic(Identity, p.key, "a copy of it on %s is message %s with payload %s; it must be message %s with payload %s",
					p.topic, e.UUID, e.Print, owed.UUID, copies[0].Print)
				break
			}
		}
	}
}

func (c *checker) broken(rule Rule, at place, format string, args ...any) {
	topic := c.byScope[at.scope].Topic
	c.report(Violation{Rule: rule, Scope: at.scope, Key: at.key, Text: fmt.Sprintf(format, args...)}, func(e Event) bool {
		return at.key != "" && e.Key == at.key && (e.Scope == at.scope || e.Scope == "" && e.Topic == topic)
	})
}

func (c *checker) brokenTopic(rule Rule, key, format string, args ...any) {
	c.report(Violation{Rule: rule, Key: key, Text: fmt.Sprintf(format, args...)}, func(e Event) bool { return key != "" && e.Key == key })
}

// told is how many violations get their counter-example: each is a walk through the whole history.
const told = 50

func (c *checker) report(v Violation, mine func(Event) bool) {
	if len(c.verdict.Violations) < told {
		v.Events = story(c.events, mine)
	}
	c.verdict.Violations = append(c.verdict.Violations, v)
}
