package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
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

// printJSON prints v. JSON leaves some control characters of foreign text as they are; here they are escaped, too.
func printJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escape(text.String(), func(r rune) bool { return r == '\n' || unicode.IsPrint(r) || r > 0xffff }))
	return err
}

// oneLine makes foreign text harmless for a terminal and for a line of output: what does not print becomes an escape,
// long text is cut.
func oneLine(s string) string {
	const most = 300
	s = escape(s, unicode.IsPrint)
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// harmless is oneLine for text of several lines and any length.
func harmless(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) })
}

// escape writes the runes that may not stay, and bytes that are no UTF-8, as escapes.
func escape(s string, stays func(rune) bool) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case stays(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
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
