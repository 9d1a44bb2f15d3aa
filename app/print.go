package app

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// table prints rows under a header, or as JSON where asked.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = oneLine(cell)
	}
	t.rows = append(t.rows, cells)
}

func (t *table) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.header, "\t"))
	for _, row := range t.rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// list prints items as a table, or as a JSON array with --json.
func list[T any](c *cli, items []T, header []string, row func(T) []string) error {
	if c.json {
		if items == nil {
			items = []T{}
		}
		return printJSON(c.out, items)
	}
	t := table{header: header}
	for _, item := range items {
		t.add(row(item)...)
	}
	return t.print(c.out)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// oneLine makes foreign text harmless for a terminal: control characters become escapes, long text is cut.
func oneLine(s string) string {
	const most = 200
	var b strings.Builder
	for _, r := range s {
		switch {
		case b.Len() > most:
			return b.String() + "..."
		case unicode.IsControl(r):
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
