package app

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// docs/metrics.md lists every series that an application registers, with the help that /metrics shows, and the values of labels that the program knows.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	documented(t, "metrics.md", metricsPage(t))
}

// Every series says what it counts, and is what it says it is.
func TestSeriesAreAsDescribed(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	m.engine(idempotency.Event{Kind: idempotency.EventAbandoned, Scope: "s", Reason: "r"})
	m.engine(idempotency.Event{Kind: idempotency.EventCompleted, Scope: "s", Duration: time.Second})
	m.relay("database").Status(outbox.Status{})
	m.parked.WithLabelValues("s", "dead").Set(1)
	m.cleaned.WithLabelValues("s").Add(1)
	families, err := m.registry.Gather()
	require.NoError(t, err)
	shown := map[string]int{}
	for i, f := range families {
		if strings.HasPrefix(f.GetName(), metricsNamespace+"_") {
			shown[f.GetName()] = i
		}
	}
	require.Len(t, shown, len(m.series))
	for _, s := range m.series {
		require.Contains(t, shown, s.name)
		f := families[shown[s.name]]
		require.Equal(t, strings.ToUpper(s.kind), f.GetType().String(), s.name)
		require.Equal(t, s.help, f.GetHelp(), s.name)
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		require.ElementsMatch(t, s.labels, labels, s.name)
		unit, _, _ := strings.Cut(s.help, " ")
		want := map[bool][]string{true: {"Seconds"}, false: {"Messages", "Messages,", "Keys", "Records", "Handlers", "Lanes"}}[strings.HasSuffix(s.name, "_seconds")]
		require.Contains(t, want, unit, "the help of %s begins with what it counts", s.name)
		require.Greater(t, len(strings.Fields(s.help)), 10, "the help of %s says when it moves", s.name)
	}
}

func metricsPage(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	page.WriteString(`# Metrics

Generated from the program's own series; do not edit. ` + "`/metrics`" + ` of the admin server shows them, and those of Go and of the process (` + "`go_`, `process_`" + `). What to watch is in
[operations.md](operations.md#what-to-watch).

A counter is of one process: add up the replicas. A gauge of the database is the same in each process that reads it: take the maximum. Labels never hold a key, an
id, an address or a text, so that the number of series is bounded. A series with labels is there once it has moved; those with a cause are there from the start.

| series | type | labels | meaning |
|---|---|---|---|
`)
	for _, s := range newMetrics().series {
		labels := "–"
		if len(s.labels) > 0 {
			labels = "`" + strings.Join(s.labels, "`, `") + "`"
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", s.name, s.kind, labels, s.help)
	}
	page.WriteString("\n`scope` is that of a binding: service and binding, unless it is set by hand. `outbox` is `database`, or the binding whose handler keeps its messages elsewhere.\n")
	table := func(title, file, kind string) {
		fmt.Fprintf(&page, "\n## %s\n\n| value | what it says |\n|---|---|\n", title)
		for _, v := range valuesOf(t, file, kind) {
			fmt.Fprintf(&page, "| `%s` | %s |\n", v.value, v.comment)
		}
	}
	table("Values of `kind`", "../middleware/idempotency/event.go", "EventKind")
	table("Values of `cause`", "../middleware/outbox/observer.go", "Cause")
	return page.String()
}

// constant is a value of a closed set, and the comment that stands with it.
type constant struct{ value, comment string }

// valuesOf reads the constants of a type from the file that declares them.
func valuesOf(t *testing.T, file, kind string) []constant {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	var all []constant
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if named, ok := spec.Type.(*ast.Ident); !ok || named.Name != kind {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		comment := strings.TrimSpace(spec.Comment.Text() + spec.Doc.Text())
		comment = strings.TrimPrefix(comment, spec.Names[0].Name+": ")
		require.NotEmpty(t, comment, "%s says nothing", spec.Names[0].Name)
		all = append(all, constant{value, strings.Join(strings.Fields(comment), " ")})
		return true
	})
	require.NotEmpty(t, all)
	return all
}
