package history_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app/proof/history"
)

// plan has a binding that pays and publishes, and one that sends a letter for what it publishes.
func plan(policy string) history.Event {
	return history.Event{Kind: history.Planned, Plan: &history.Plan{Bindings: []history.Binding{
		{Name: "pay", Scope: "s/pay", Topic: "in", Effects: map[string]int64{"payment": 1}},
		{Name: "mail", Scope: "s/mail", Topic: "out", Effects: map[string]int64{"row": 1}, Letters: true, Policy: policy},
	}}}
}

// good is a history of one payment that was sent twice and handled once.
func good() []history.Event {
	out := []history.Output{{Topic: "out", Key: "k-out", UUID: "u-out"}}
	events := []history.Event{
		plan("retry"),
		{Kind: history.Sent, Topic: "in", Key: "k", UUID: "u", Print: "p"},
		{Kind: history.Confirmed, Topic: "in", Key: "k", UUID: "u", Print: "p"},
		{Kind: history.Sent, Topic: "in", Key: "k", UUID: "u", Print: "p", What: history.Copy},
		{Kind: history.Confirmed, Topic: "in", Key: "k", UUID: "u", Print: "p", What: history.Copy},
		{Kind: history.Delivered, Replica: "a", Scope: "s/pay", Key: "k", UUID: "u"},
		{Kind: history.Engine, Replica: "a", Scope: "s/pay", Key: "k", What: "completed"},
		{Kind: history.Process, Replica: "a", What: "killed"},
		{Kind: history.Engine, Replica: "b", Scope: "s/pay", Key: "k", What: "duplicate"},
		{Kind: history.Acked, Replica: "b", Scope: "s/pay", Key: "k", UUID: "u"},
		{Kind: history.Emitted, Replica: "b", Topic: "out", Key: "k-out", UUID: "u-out", Print: "q"},
		{Kind: history.Emitted, Replica: "a", Topic: "out", Key: "k-out", UUID: "u-out", Print: "q"},
		{Kind: history.Engine, Replica: "b", Scope: "s/mail", Key: "k-out", What: "completed"},
		{Kind: history.Acked, Replica: "b", Scope: "s/mail", Key: "k-out", UUID: "u-out"},
		{Kind: history.Sent, Topic: "in", Key: "k", UUID: "f", Print: "forged", What: history.Forgery},
		{Kind: history.Confirmed, Topic: "in", Key: "k", UUID: "f", Print: "forged", What: history.Forgery},
		{Kind: history.Letter, Scope: "s/mail", Key: "k-out", UUID: "m"},
		{Kind: history.KeyState, Scope: "s/pay", Key: "k", What: "completed"},
		{Kind: history.KeyState, Scope: "s/mail", Key: "k-out", What: "completed"},
		{Kind: history.Effect, Scope: "s/pay", Key: "k", What: "payment", Count: 1, Outputs: out},
		{Kind: history.Effect, Scope: "s/mail", Key: "k-out", What: "row", Count: 1},
		{Kind: history.Parked, Scope: "s/pay", Key: "k", UUID: "f", Print: "forged", What: "dead", Reason: "payload-mismatch"},
		{Kind: history.Sum, What: "the sum of the ledger"},
		{Kind: history.Ended},
	}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range events {
		if events[i].Replica != "" || events[i].Kind == history.Sent || events[i].Kind == history.Confirmed {
			events[i].At = begin.Add(time.Duration(i) * time.Millisecond)
		}
	}
	return events
}

func TestAGoodHistoryHolds(t *testing.T) {
	v, err := history.Check(good())
	require.NoError(t, err)
	require.True(t, v.Holds(), "%+v", v.Violations)
	require.Equal(t, 2, v.Keys)
	require.Equal(t, 2, v.Effects)
	require.Equal(t, 1, v.Refused)
}

// without drops the events that drop chooses.
func without(events []history.Event, drop func(e history.Event) bool) []history.Event {
	return slices.DeleteFunc(events, drop)
}

// with adds events before the end.
func with(events []history.Event, more ...history.Event) []history.Event {
	return slices.Insert(events, len(events)-1, more...)
}

// Each rule has a history that breaks it and nothing else.
func TestEachBrokenPromiseIsNamed(t *testing.T) {
	of := func(key string) func(history.Event) bool {
		return func(e history.Event) bool {
			return e.Key == key && (e.Kind == history.KeyState || e.Kind == history.Effect || e.Kind == history.Letter)
		}
	}
	more := func(e ...history.Event) func([]history.Event) []history.Event {
		return func(events []history.Event) []history.Event { return with(events, e...) }
	}
	for _, c := range []struct {
		rule  history.Rule
		name  string
		spoil func([]history.Event) []history.Event
	}{
		{history.Lost, "an acknowledged letter that is not there", func(events []history.Event) []history.Event { return without(events, of("k-out")) }},
		{history.Unhandled, "a message that nobody handled", more(history.Event{Kind: history.Confirmed, Topic: "in", Key: "new"})},
		{history.Doubled, "two payments", more(history.Event{Kind: history.Effect, Scope: "s/pay", Key: "k", What: "payment", Count: 1})},
		{history.Doubled, "two commits", more(history.Event{Kind: history.Engine, Scope: "s/pay", Key: "k", What: "completed"})},
		{history.Missing, "a key without its row", func(events []history.Event) []history.Event {
			return without(events, func(e history.Event) bool { return e.Kind == history.Effect && e.What == "row" })
		}},
		{history.Missing, "a key without its letter", func(events []history.Event) []history.Event {
			return without(events, func(e history.Event) bool { return e.Kind == history.Letter })
		}},
		{history.Keyless, "a row without its key", func(events []history.Event) []history.Event {
			return without(events, func(e history.Event) bool { return e.Kind == history.KeyState && e.Scope == "s/mail" })
		}},
		{history.Uninvited, "a payment that nobody sent", more(
			history.Event{Kind: history.Effect, Scope: "s/pay", Key: "ghost", What: "payment", Count: 1},
			history.Event{Kind: history.KeyState, Scope: "s/pay", Key: "ghost", What: "completed"})},
		{history.Books, "a ledger that does not sum to zero", more(history.Event{Kind: history.Sum, What: "the sum", Count: 5})},
		{history.Identity, "a copy with another identity", more(history.Event{Kind: history.Emitted, Topic: "out", Key: "k-out", UUID: "other", Print: "q"})},
		{history.Identity, "a copy with another payload", more(history.Event{Kind: history.Emitted, Topic: "out", Key: "k-out", UUID: "u-out", Print: "other"})},
		{history.Invented, "an output of a transaction that rolled back", more(history.Event{Kind: history.Emitted, Topic: "out", Key: "nobody's", UUID: "x", Print: "q"})},
		{history.LeftOver, "a message in the outbox", more(history.Event{Kind: history.Left, Topic: "out", Key: "k-out", UUID: "u-out"})},
		{history.LeftOver, "a message that waits", more(history.Event{Kind: history.Parked, Scope: "s/pay", Key: "k", What: "waiting"})},
		{history.LeftOver, "a key in progress", func(events []history.Event) []history.Event {
			events = without(events, of("k-out"))
			return with(events, history.Event{Kind: history.KeyState, Scope: "s/mail", Key: "k-out", What: "in_progress"})
		}},
		{history.Doubt, "a doubt that the policy does not leave", func(events []history.Event) []history.Event {
			events = without(events, of("k-out"))
			return with(events, history.Event{Kind: history.KeyState, Scope: "s/mail", Key: "k-out", What: "in_doubt"})
		}},
		{history.Innocent, "a dead letter of a good message", more(history.Event{Kind: history.Parked, Scope: "s/pay", Key: "k", UUID: "u", Print: "p", What: "dead"})},
		{history.Accepted, "a second payload that passed", func(events []history.Event) []history.Event {
			return without(events, func(e history.Event) bool { return e.Kind == history.Parked })
		}},
		{history.Repeated, "a letter that was sent again for no reason", more(history.Event{Kind: history.Letter, Scope: "s/mail", Key: "k-out", UUID: "m"})},
		{history.CheckFailed, "a plugin that finds its tables wrong", more(history.Event{Kind: history.Checked, What: "seats", Reason: "3 seats, want 2"})},
		{history.Died, "a process that died", more(history.Event{Kind: history.Process, Replica: "a", What: "died", Reason: "exit status 2"})},
	} {
		t.Run(string(c.rule)+": "+c.name, func(t *testing.T) {
			v, err := history.Check(c.spoil(good()))
			require.NoError(t, err)
			require.Len(t, v.Violations, 1, "%+v", v.Violations)
			require.Equal(t, c.rule, v.Violations[0].Rule)
		})
	}
}

// Where effects do not say what has to be published, what the relay published has to be handled, and to be the same in every copy.
func TestAnOpenPlanTakesOutputsAsTheyCome(t *testing.T) {
	open := func(more ...history.Event) history.Verdict {
		p := history.Plan{Open: true, Bindings: []history.Binding{{Name: "pay", Scope: "s/pay", Topic: "in"}, {Name: "note", Scope: "s/note", Topic: "out"}}}
		v, err := history.Check(with([]history.Event{
			{Kind: history.Planned, Plan: &p},
			{Kind: history.Confirmed, Topic: "in", Key: "k"},
			{Kind: history.Emitted, Topic: "out", Key: "k-out", UUID: "u-out", Print: "q"},
			{Kind: history.KeyState, Scope: "s/pay", Key: "k", What: "completed"},
			{Kind: history.Checked, What: "seats", Count: 1},
			{Kind: history.Ended},
		}, more...))
		require.NoError(t, err)
		return v
	}
	handled := history.Event{Kind: history.KeyState, Scope: "s/note", Key: "k-out", What: "completed"}
	v := open(handled, history.Event{Kind: history.Emitted, Topic: "elsewhere", Key: "x", UUID: "x"})
	require.True(t, v.Holds(), "%+v", v.Violations)
	require.Equal(t, 2, v.Keys)
	require.Equal(t, 2, v.Effects)

	v = open()
	require.Len(t, v.Violations, 1)
	require.Equal(t, history.Unhandled, v.Violations[0].Rule)
	require.Equal(t, "s/note", v.Violations[0].Scope)

	v = open(handled, history.Event{Kind: history.Emitted, Topic: "out", Key: "k-out", UUID: "u-out", Print: "other"})
	require.Len(t, v.Violations, 1)
	require.Equal(t, history.Identity, v.Violations[0].Rule)
}

// What the declared policy allows is no violation, and is counted.
func TestPoliciesAllowWhatTheyDeclare(t *testing.T) {
	again := with(good(),
		history.Event{Kind: history.Engine, Scope: "s/mail", Key: "k-out", What: "takeover"},
		history.Event{Kind: history.Letter, Scope: "s/mail", Key: "k-out", UUID: "m"})
	v, err := history.Check(again)
	require.NoError(t, err)
	require.True(t, v.Holds(), "%+v", v.Violations)
	require.Equal(t, 1, v.Letters)

	parked := good()
	parked[0] = plan("park")
	parked = without(parked, func(e history.Event) bool {
		return e.Key == "k-out" && (e.Kind == history.KeyState || e.Kind == history.Effect)
	})
	parked = with(parked,
		history.Event{Kind: history.KeyState, Scope: "s/mail", Key: "k-out", What: "in_doubt"},
		history.Event{Kind: history.Parked, Scope: "s/mail", Key: "k-out", What: "in_doubt"})
	v, err = history.Check(parked)
	require.NoError(t, err)
	require.True(t, v.Holds(), "%+v", v.Violations)
	require.Equal(t, 1, v.Doubtful)
	require.Equal(t, 1, v.Effects)
}

// A message that was sent and never confirmed may be there or not; half of it may not.
func TestAnUnconfirmedMessageMayBeThereOrNot(t *testing.T) {
	sent := history.Event{Kind: history.Sent, Topic: "in", Key: "maybe"}
	v, err := history.Check(with(good(), sent))
	require.NoError(t, err)
	require.True(t, v.Holds())
	v, err = history.Check(with(good(), sent, history.Event{Kind: history.KeyState, Scope: "s/pay", Key: "maybe", What: "completed"}))
	require.NoError(t, err)
	require.Len(t, v.Violations, 1)
	require.Equal(t, history.Missing, v.Violations[0].Rule)
}

func TestACounterExampleIsTheStoryOfOneKey(t *testing.T) {
	v, err := history.Check(without(good(), func(e history.Event) bool { return e.Key == "k" && e.Kind != history.Acked && e.At.IsZero() }))
	require.NoError(t, err)
	lost := v.Violations[slices.IndexFunc(v.Violations, func(v history.Violation) bool { return v.Rule == history.Lost })]
	var out strings.Builder
	lost.Tell(&out)
	require.Contains(t, out.String(), "process killed", "what became of the process meanwhile belongs to the story")
	require.NotContains(t, out.String(), "k-out")
	require.True(t, slices.IsSortedFunc(lost.Events, func(a, b history.Event) int { return a.At.Compare(b.At) }))
}

func TestAPartOfAHistoryProvesNothing(t *testing.T) {
	_, err := history.Check(good()[1:])
	require.ErrorIs(t, err, history.ErrNoPlan)
	_, err = history.Check(good()[:len(good())-1])
	require.ErrorIs(t, err, history.ErrNoEnd)
}

func TestAHistoryComesBackFromItsFile(t *testing.T) {
	var file bytes.Buffer
	enc := json.NewEncoder(&file)
	for _, e := range good() {
		require.NoError(t, enc.Encode(e))
	}
	events, err := history.Read(&file)
	require.NoError(t, err)
	require.Equal(t, good(), events)
	_, err = history.Read(strings.NewReader("{\"kind\":\"plan\"}\n{"))
	require.ErrorContains(t, err, "event 2")
}
