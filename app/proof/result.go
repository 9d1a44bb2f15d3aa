package proof

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// Count is how many bindings a fault at a step was tried with, and with how many it fired.
type Count struct {
	Pairs int `json:"pairs"`
	Fired int `json:"fired"`
}

// Tried counts pairs by step and fault.
type Tried map[faultpoint.Point]map[Fault]Count

// add counts a pair, or one that has fired.
func (t Tried) add(at faultpoint.Point, f Fault, fired int) {
	if t[at] == nil {
		t[at] = map[Fault]Count{}
	}
	c := t[at][f]
	c.Pairs, c.Fired = c.Pairs+1-fired, c.Fired+fired
	t[at][f] = c
}

// Total adds everything up.
func (t Tried) Total() (total Count) {
	for _, row := range t {
		for _, c := range row {
			total.Pairs, total.Fired = total.Pairs+c.Pairs, total.Fired+c.Fired
		}
	}
	return total
}

// Result is what a trial comes to.
type Result struct {
	Plan    history.Plan    `json:"plan"`
	Verdict history.Verdict `json:"verdict"`
	Settled bool            `json:"settled"`

	Matrix  Tried     `json:"matrix,omitempty"`
	Untried []Untried `json:"untried,omitempty"`

	Messages    int            `json:"messages"`
	Copies      int            `json:"copies"`
	Forgeries   int            `json:"forgeries"`
	Deliveries  int            `json:"deliveries"`
	Duplicates  int            `json:"duplicates_removed"`
	Emitted     int            `json:"emitted"`
	Letters     int            `json:"letters"`
	Faults      map[string]int `json:"faults"`
	Killed      int            `json:"killed"`
	Fell        int            `json:"fell"`
	Stopped     int            `json:"stopped"`
	Disturbed   map[string]int `json:"disturbed"`
	Unreachable int            `json:"store_unavailable"`
}

// Finish waits until everything is settled, ends the replicas, reads what came of it, and judges.
func (t *Trial) Finish(ctx context.Context) (Result, error) {
	settled, err := t.settle(ctx, t.cfg.Patience)
	if err != nil {
		return Result{}, err
	}
	t.Close()
	if err := t.finalState(ctx); err != nil {
		return Result{}, err
	}
	r, err := Judge(t.rec.Events())
	r.Settled = settled
	return r, err
}

// Judge counts and judges a history.
func Judge(events []history.Event) (Result, error) {
	verdict, err := history.Check(events)
	if err != nil {
		return Result{}, err
	}
	r := Result{Plan: *events[0].Plan, Verdict: verdict, Settled: true, Faults: map[string]int{}, Disturbed: map[string]int{}}
	for _, e := range events {
		r.count(e)
	}
	return r, nil
}

func (r *Result) count(e history.Event) {
	switch e.Kind {
	case history.Confirmed:
		switch e.What {
		case history.Original:
			r.Messages++
		case history.Forgery:
			r.Forgeries++
		default:
			r.Copies++
		}
	case history.Delivered:
		r.Deliveries++
	case history.Emitted:
		r.Emitted++
	case history.Letter:
		r.Letters++
	case history.Fault:
		if e.What != string(hold) { // it only makes a step be reached
			r.Faults[e.What]++
		}
	case history.Disturbed:
		r.Disturbed[e.What]++
	case history.Engine:
		switch e.What {
		case "duplicate":
			r.Duplicates++
		case "unavailable":
			r.Unreachable++
		}
	case history.Process:
		switch e.What {
		case "killed":
			r.Killed++
		case "fell":
			r.Fell++
		case "stopped":
			r.Stopped++
		}
	}
}

// Write prints the result for people.
func (r Result) Write(w io.Writer) {
	if len(r.Matrix) > 0 {
		r.writeMatrix(w)
	}
	fmt.Fprintf(w, "\n%s, %s, keys in %s; seed %d\n", r.Plan.Broker, r.Plan.Database, r.Plan.Keys, r.Plan.Seed)
	for _, line := range []struct {
		what  string
		count int
		note  string
	}{
		{"messages published", r.Messages, "by producers"},
		{"sent again", r.Copies, "copies and rivals"},
		{"second payloads under used keys", r.Forgeries, fmt.Sprintf("refused %d times, once by each binding", r.Verdict.Refused)},
		{"published by the relay", r.Emitted, "copies included"},
		{"deliveries", r.Deliveries, ""},
		{"duplicates removed", r.Duplicates, "of those deliveries"},
		{"letters", r.Letters, fmt.Sprintf("%d of them again, as the policy for unknown outcomes allows", r.Verdict.Letters)},
		{"faults fired", sum(r.Faults), list(r.Faults)},
		{"processes killed from outside", r.Killed, ""},
		{"processes ended by a fault", r.Fell, ""},
		{"processes stopped and started", r.Stopped, "the last stop included"},
		{"disturbances", sum(r.Disturbed), list(r.Disturbed)},
		{"keys with an effect to have", r.Verdict.Keys, ""},
		{"effects exactly once", r.Verdict.Effects, ""},
		{"left to a person, by policy", r.Verdict.Doubtful, ""},
		{"violations", len(r.Verdict.Violations), ""},
	} {
		fmt.Fprintf(w, "%-34s %8d   %s\n", line.what, line.count, line.note)
	}
	if !r.Settled {
		fmt.Fprintln(w, "Not everything settled within the time of --settle.")
	}
	for i, v := range r.Verdict.Violations {
		if i == shown {
			fmt.Fprintf(w, "\n… and %d more violations\n", len(r.Verdict.Violations)-shown)
			break
		}
		fmt.Fprintln(w)
		v.Tell(w)
	}
}

// shown is how many violations are printed.
const shown = 5

// writeMatrix prints the faults at each step as a table, and what cannot be tried.
func (r Result) writeMatrix(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nstep")
	for _, f := range Faults() {
		fmt.Fprintf(table, "\t%s", f)
	}
	fmt.Fprintln(table)
	for _, at := range append(faultpoint.Engine(), faultpoint.Relay()...) {
		if r.Matrix[at] == nil {
			continue
		}
		fmt.Fprint(table, at)
		for _, f := range Faults() {
			fmt.Fprintf(table, "\t%s", r.Matrix[at][f])
		}
		fmt.Fprintln(table)
	}
	table.Flush()
	total := r.Matrix.Total()
	fmt.Fprintf(w, "Fired for so many bindings; of %d pairs of binding, step and fault %d fired.\n", total.Pairs, total.Fired)
	for _, why := range slices.Sorted(maps.Keys(r.reasons())) {
		fmt.Fprintf(w, "not tried: %s: %s\n", strings.Join(r.reasons()[why], ", "), why)
	}
}

// reasons groups what was not tried by why.
func (r Result) reasons() map[string][]string {
	by := map[string][]string{}
	for _, u := range r.Untried {
		name := u.Binding + " " + string(u.Point)
		if u.Fault != "" {
			name += " × " + string(u.Fault)
		}
		by[u.Why] = append(by[u.Why], name)
	}
	return by
}

// String is one cell of the table.
func (c Count) String() string {
	switch {
	case c.Pairs == 0:
		return "-"
	case c.Fired == c.Pairs:
		return fmt.Sprint(c.Fired)
	}
	return fmt.Sprintf("%d of %d", c.Fired, c.Pairs)
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// list names counts, the largest first.
func list(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(words, ", ")
}
