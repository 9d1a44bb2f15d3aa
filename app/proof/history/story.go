package history

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// longest is how many events of a counter-example are shown; of a longer one the first and the last.
const longest = 60

// story returns the events that belong to a counter-example in the order of time: those that mine chooses, and what became of the
// processes meanwhile.
func story(events []Event, mine func(Event) bool) []Event {
	var own []Event
	var from, to time.Time
	for _, e := range events {
		if !mine(e) {
			continue
		}
		own = append(own, e)
		if e.At.IsZero() {
			continue
		}
		if from.IsZero() || e.At.Before(from) {
			from = e.At
		}
		if e.At.After(to) {
			to = e.At
		}
	}
	for _, e := range events {
		around := e.Kind == Process || e.Kind == Disturbed || e.Kind == Fault && e.Key == ""
		if around && !e.At.Before(from) && !e.At.After(to) && !mine(e) {
			own = append(own, e)
		}
	}
	slices.SortStableFunc(own, func(a, b Event) int {
		if a.At.IsZero() != b.At.IsZero() { // what is there at the end comes last
			if a.At.IsZero() {
				return 1
			}
			return -1
		}
		return a.At.Compare(b.At)
	})
	return own
}

// Tell writes a violation with its counter-example, for people.
func (v Violation) Tell(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n", v.Rule, v.Text)
	if v.Key != "" {
		fmt.Fprintf(w, "  key %s %s\n", v.Key, v.Scope)
	}
	var zero time.Time
	for i, e := range v.Events {
		if cut := len(v.Events) - longest; cut > 0 && i >= longest/2 && i < longest/2+cut {
			if i == longest/2 {
				fmt.Fprintf(w, "  … %d more events\n", cut)
			}
			continue
		}
		if zero.IsZero() {
			zero = e.At
		}
		fmt.Fprintf(w, "  %s\n", e.line(zero))
	}
}

// line is one event as a line, with the time since zero.
func (e Event) line(zero time.Time) string {
	when := "at the end"
	if !e.At.IsZero() {
		when = fmt.Sprintf("%+8.3fs", e.At.Sub(zero).Seconds())
	}
	words := []string{string(e.Kind)}
	for _, word := range []string{e.What, e.Point} {
		if word != "" {
			words = append(words, word)
		}
	}
	if e.Count != 0 {
		words = append(words, fmt.Sprintf("× %d", e.Count))
	}
	if e.Topic != "" {
		words = append(words, "on "+e.Topic)
	}
	if e.Scope != "" {
		words = append(words, "in "+e.Scope)
	}
	if e.Reason != "" {
		words = append(words, "("+e.Reason+")")
	}
	if e.UUID != "" {
		words = append(words, "message "+e.UUID)
	}
	if e.Print != "" {
		words = append(words, "payload "+e.Print)
	}
	for _, o := range e.Outputs {
		words = append(words, "→ "+o.Topic+" "+o.Key)
	}
	return fmt.Sprintf("%-11s %-9s %s", when, e.Replica, strings.Join(words, " "))
}
