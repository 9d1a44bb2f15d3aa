package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Rule names a promise that was broken.
type Rule string

// Rules.
const (
	// Lost: a published message was acknowledged, and its effect is not there.
	Lost Rule = "acked-and-lost"
	// Unhandled: a published message has no effect, and nobody acknowledged it.
	Unhandled Rule = "not-handled"
	// Doubled: an effect is there more often than once.
	Doubled Rule = "effect-doubled"
	// Missing: the key says completed, and an effect of it is missing.
	Missing Rule = "effect-missing"
	// Keyless: an effect is there, and its key is not completed.
	Keyless Rule = "effect-without-key"
	// Uninvited: an effect of something that nobody published.
	Uninvited Rule = "effect-uninvited"
	// Books: sums that do not agree.
	Books Rule = "books-do-not-balance"
	// Identity: copies of one output differ.
	Identity Rule = "output-identity"
	// Invented: an output that no effect has to publish.
	Invented Rule = "output-uninvited"
	// LeftOver: something is still on its way at the end.
	LeftOver Rule = "left-over"
	// Doubt: a message is in doubt although its policy leaves nothing in doubt.
	Doubt Rule = "in-doubt"
	// Innocent: a message that should have succeeded is a dead letter.
	Innocent Rule = "innocent-dead-letter"
	// Accepted: a second payload under one key was not refused.
	Accepted Rule = "forgery-not-refused"
	// Repeated: a letter was sent again without a reason.
	Repeated Rule = "letter-repeated"
	// CheckFailed: a plugin's own check of the database failed.
	CheckFailed Rule = "check-failed"
	// Died: a process ended that nobody ended.
	Died Rule = "process-died"
)

// Violation is one broken promise.
type Violation struct {
	Rule  Rule   `json:"rule"`
	Scope string `json:"scope,omitempty"`
	Key   string `json:"key,omitempty"`
	Text  string `json:"text"`
	// Events are the counter-example: what happened to the key, over all replicas, in the order of time. Of very many violations the first ones have one.
	Events []Event `json:"events"`
}

// Verdict is what a history comes to.
type Verdict struct {
	Violations []Violation `json:"violations"`
	// Keys is how many pairs of scope and key had to have their effect; Effects, how many had it.
	Keys    int `json:"keys"`
	Effects int `json:"effects"`
	// Refused are the second payloads under used keys that became dead letters, as they must.
	Refused int `json:"refused"`
	// Doubtful are messages left to a person, and Letters letters sent again, both as the declared policy wants it.
	Doubtful int `json:"doubtful"`
	Letters  int `json:"letters_repeated"`
}

// Holds reports that no promise was broken.
func (v Verdict) Holds() bool { return len(v.Violations) == 0 }

// Errors of events that are not a whole history, and so prove nothing.
var (
	ErrNoPlan = errors.New("the history does not begin with its plan")
	ErrNoEnd  = errors.New("the history is not complete: the trial was interrupted before it read what came of it")
)

// Check judges a history. The events of one replica stand in the order in which they happened.
func Check(events []Event) (Verdict, error) {
	if len(events) == 0 || events[0].Kind != Planned || events[0].Plan == nil {
		return Verdict{}, ErrNoPlan
	}
	if events[len(events)-1].Kind != Ended {
		return Verdict{}, ErrNoEnd
	}
	c := newChecker(events)
	c.read()
	c.expectOutputs()
	c.expectEmitted()
	c.published()
	c.uninvited()
	c.outputs()
	c.parking()
	c.around()
	slices.SortStableFunc(c.verdict.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
	})
	return c.verdict, nil
}

// published judges every key that had to be handled, or that may have been.
func (c *checker) published() {
	for _, at := range slices.SortedFunc(maps.Keys(c.expected), place.compare) {
		must := c.expected[at]
		if must {
			c.verdict.Keys++
		}
		c.handled(c.byScope[at.scope], at, must)
	}
}

// handled judges one key of one binding.
func (c *checker) handled(b Binding, at place, must bool) {
	f := c.fact(at)
	if f.state == "" && len(f.effects) == 0 && f.letters == 0 {
		switch {
		case !must:
		case f.acked:
			c.broken(Lost, at, "it was acknowledged, and neither key nor effect is there")
		default:
			c.broken(Unhandled, at, "it was published, and neither key nor effect is there")
		}
		return
	}
	switch f.state {
	case "completed":
		c.complete(b, at, f)
	case "in_doubt":
		if b.Policy != "park" {
			c.broken(Doubt, at, "it is in doubt, and the policy for unknown outcomes is %q", cmp.Or(b.Policy, "none"))
			return
		}
		c.verdict.Doubtful++
		c.twice(b, at, f)
	case "in_progress":
		c.broken(LeftOver, at, "its key is still in progress")
	case "failed":
		c.broken(Innocent, at, "its key says failed")
	case "":
		if f.letters > 0 && len(f.effects) == 0 {
			c.broken(Keyless, at, "its letter was sent, and it has no key")
			return
		}
		c.broken(Keyless, at, "its effect %s is there, and its key is not", f.names())
	default:
		c.broken(LeftOver, at, "its key is in the state %q", f.state)
	}
	if f.completions > 1 {
		c.broken(Doubled, at, "it was committed %d times", f.completions)
	}
}

// complete judges a key that says completed.
func (c *checker) complete(b Binding, at place, f *fact) {
	good := true
	for _, name := range slices.Sorted(maps.Keys(b.Effects)) {
		if f.effects[name] < b.Effects[name] {
			c.broken(Missing, at, "its key is completed, and its effect %q is there %d times, not %d", name, f.effects[name], b.Effects[name])
			good = false
		}
	}
	if b.Letters && f.letters == 0 {
		c.broken(Missing, at, "its key is completed, and no letter was sent")
		good = false
	}
	if c.twice(b, at, f) && good {
		c.verdict.Effects++
	}
}

// twice reports that nothing is there more often than it may.
func (c *checker) twice(b Binding, at place, f *fact) bool {
	good := true
	for _, name := range slices.Sorted(maps.Keys(f.effects)) {
		if f.effects[name] > b.Effects[name] {
			c.broken(Doubled, at, "its effect %q is there %d times, not %d", name, f.effects[name], b.Effects[name])
			good = false
		}
	}
	again := f.letters - 1
	if again <= 0 {
		return good
	}
	if b.Policy != "retry" || again > f.doubts {
		c.broken(Repeated, at, "%d letters were sent; the policy is %q and the outcome was unknown %d times", f.letters, cmp.Or(b.Policy, "none"), f.doubts)
		return false
	}
	c.verdict.Letters += again
	return good
}

// uninvited looks for effects and keys of what nobody published.
func (c *checker) uninvited() {
	for _, at := range slices.SortedFunc(maps.Keys(c.facts), place.compare) {
		f := c.facts[at]
		if _, known := c.expected[at]; known || f.state == "" && len(f.effects) == 0 && f.letters == 0 {
			continue
		}
		what := "a key in the state " + f.state
		if len(f.effects) > 0 {
			what = "the effect " + f.names()
		} else if f.letters > 0 {
			what = "a letter"
		}
		c.broken(Uninvited, at, "%s is there, and nobody published it", what)
	}
}

// parking judges waiting messages, dead letters and messages in doubt.
func (c *checker) parking() {
	refused := map[forged]bool{}
	for _, e := range c.parked {
		at := place{e.Scope, e.Key}
		switch e.What {
		case "waiting":
			c.broken(LeftOver, at, "it is still parked: %s", e.Reason)
		case "dead":
			f := forged{at, e.Print}
			if _, known := c.forgeries[f]; !known {
				c.broken(Innocent, at, "it is a dead letter: %s", e.Reason)
				continue
			}
			refused[f] = true
		}
	}
	for _, f := range slices.SortedFunc(maps.Keys(c.forgeries), func(a, b forged) int {
		return cmp.Or(a.at.compare(b.at), cmp.Compare(a.print, b.print))
	}) {
		switch {
		case refused[f]:
			c.verdict.Refused++
		case c.forgeries[f]:
			c.broken(Accepted, f.at, "a second payload (%s) came under its key and did not become a dead letter", f.print)
		}
	}
}

// around judges what belongs to no key: sums, the outbox, processes.
func (c *checker) around() {
	for _, e := range c.events {
		at := place{e.Scope, e.Key}
		switch e.Kind {
		case Sum:
			if e.Count != e.Want {
				c.broken(Books, at, "%s is %d, and must be %d", e.What, e.Count, e.Want)
			}
		case Left:
			c.brokenTopic(LeftOver, e.Key, "message %s to %s is still in the outbox: %s", e.UUID, e.Topic, cmp.Or(e.Reason, "not published"))
		case Checked:
			if e.Reason != "" {
				c.verdict.Violations = append(c.verdict.Violations, Violation{
					Rule: CheckFailed, Text: fmt.Sprintf("plugin %s: %s", e.What, e.Reason), Events: []Event{e},
				})
			}
		case Process:
			if e.What == "died" {
				c.verdict.Violations = append(c.verdict.Violations, Violation{
					Rule: Died, Text: fmt.Sprintf("replica %s ended by itself: %s", e.Replica, e.Reason), Events: []Event{e},
				})
			}
		}
	}
}
