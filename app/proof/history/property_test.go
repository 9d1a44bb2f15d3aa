package history_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/app/proof/history"
)

// anyGood draws a history in which every promise held: messages that were sent several times, delivered several times, and handled once, with outputs that
// were published several times, and processes that were killed in between.
func anyGood(t *rapid.T) (events []history.Event, keys []string) {
	events = append(events, plan("retry"))
	var end []history.Event
	for n := range rapid.IntRange(1, 12).Draw(t, "messages") {
		key := fmt.Sprintf("key-%d", n)
		keys = append(keys, key)
		out := history.Output{Topic: "out", Key: key + "-out", UUID: key + "-uuid"}
		for copy := range rapid.IntRange(1, 3).Draw(t, "copies") {
			what := history.Original
			if copy > 0 {
				what = history.Copy
			}
			events = append(events,
				history.Event{Kind: history.Sent, Topic: "in", Key: key, What: what},
				history.Event{Kind: history.Confirmed, Topic: "in", Key: key, What: what})
		}
		for _, at := range []struct{ scope, key string }{{"s/pay", key}, {"s/mail", out.Key}} {
			events = append(events, history.Event{Kind: history.Engine, Scope: at.scope, Key: at.key, What: "completed"})
			for range rapid.IntRange(0, 2).Draw(t, "duplicates") {
				events = append(events, history.Event{Kind: history.Engine, Scope: at.scope, Key: at.key, What: "duplicate"})
			}
			if rapid.Bool().Draw(t, "acked") {
				events = append(events, history.Event{Kind: history.Acked, Scope: at.scope, Key: at.key})
			}
			end = append(end, history.Event{Kind: history.KeyState, Scope: at.scope, Key: at.key, What: "completed"})
		}
		for range rapid.IntRange(0, 3).Draw(t, "published") {
			events = append(events, history.Event{Kind: history.Emitted, Topic: out.Topic, Key: out.Key, UUID: out.UUID, Print: key})
		}
		if rapid.Bool().Draw(t, "killed") {
			events = append(events, history.Event{Kind: history.Process, Replica: "a", What: "killed"})
		}
		letters := 1
		if rapid.Bool().Draw(t, "taken over") {
			events = append(events, history.Event{Kind: history.Engine, Scope: "s/mail", Key: out.Key, What: "takeover"})
			letters = rapid.IntRange(1, 2).Draw(t, "letters")
		}
		for range letters {
			end = append(end, history.Event{Kind: history.Letter, Scope: "s/mail", Key: out.Key})
		}
		end = append(end,
			history.Event{Kind: history.Effect, Scope: "s/pay", Key: key, What: "payment", Count: 1, Outputs: []history.Output{out}},
			history.Event{Kind: history.Effect, Scope: "s/mail", Key: out.Key, What: "row", Count: 1})
	}
	return append(append(events, end...), history.Event{Kind: history.Ended}), keys
}

func TestNoGoodHistoryIsAccused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, keys := anyGood(t)
		v, err := history.Check(events)
		if err != nil || !v.Holds() {
			t.Fatalf("%v %+v", err, v.Violations)
		}
		if v.Keys != 2*len(keys) || v.Effects != v.Keys {
			t.Fatalf("%d messages: %d keys, %d effects", len(keys), v.Keys, v.Effects)
		}
	})
}

// Whatever of one message is lost, doubled or made up is found, and nothing is said against the others.
func TestEverySpoiltMessageIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events, keys := anyGood(t)
		key := rapid.SampledFrom(keys).Draw(t, "spoilt")
		kind := rapid.SampledFrom([]history.Kind{history.KeyState, history.Effect, history.Letter}).Draw(t, "kind")
		mine := func(e history.Event) bool { return e.Kind == kind && (e.Key == key || e.Key == key+"-out") }
		switch rapid.SampledFrom([]string{"lose", "double", "invent"}).Draw(t, "how") {
		case "lose":
			events = without(events, mine)
		case "double":
			for _, e := range events {
				if mine(e) && e.Kind == history.Effect {
					events = with(events, e)
				} else if mine(e) {
					events = with(events, history.Event{Kind: history.Engine, Scope: e.Scope, Key: e.Key, What: "completed"})
				}
			}
		case "invent":
			events = with(events, history.Event{Kind: history.Effect, Scope: "s/pay", Key: key + "-ghost", What: "payment", Count: 1})
		}
		v, err := history.Check(events)
		if err != nil || v.Holds() {
			t.Fatalf("nothing was found (%v)", err)
		}
		for _, violation := range v.Violations {
			if violation.Key != key && violation.Key != key+"-out" && violation.Key != key+"-ghost" {
				t.Fatalf("%s was accused for %s: %s", violation.Key, key, violation.Text)
			}
		}
	})
}
