package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Print writes the effective configuration as YAML, with the place of each value that is not a default as a comment. Secrets, and passwords
// in URLs and connection strings, are redacted: by their type, and in the sections of adapters and plugins by their names. What it
// writes can be loaded again.
func (c *Config) Print(w io.Writer) error {
	p := printer{origins: map[string]origin{}}
	if c.loaded != nil {
		p.origins = c.loaded.origins
	}
	p.structure(reflect.ValueOf(c).Elem(), "", 0, true)
	if _, err := w.Write(p.out.Bytes()); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

type printer struct {
	out     bytes.Buffer
	origins map[string]origin
}

// structure prints the fields of v; those that are zero only where all is set.
func (p *printer) structure(v reflect.Value, path string, depth int, all bool) {
	for _, f := range fieldsOf(v.Type()) {
		value := v.FieldByIndex(f.index)
		if value.IsZero() && (!all || !isScalar(f.typ)) {
			continue
		}
		p.value(value, f.name, join(path, f.name), depth, all)
	}
}

func (p *printer) value(v reflect.Value, name, path string, depth int, all bool) {
	t := v.Type()
	switch {
	case t == sectionType:
		p.section(v.Interface().(Section), name, depth)
	case isScalar(t):
		p.line(name, scalarText(v, name), p.origins[path], depth)
	case t.Kind() == reflect.Struct:
		p.line(name, "", origin{}, depth)
		p.structure(v, path, depth+1, all)
	case t.Kind() == reflect.Map:
		p.line(name, "", origin{}, depth)
		for _, key := range sortedKeys(stringMap(v)) {
			p.value(v.MapIndex(reflect.ValueOf(key)), key, join(path, key), depth+1, false)
		}
	}
}

// stringMap makes the keys of a map sortable.
func stringMap(v reflect.Value) map[string]struct{} {
	keys := map[string]struct{}{}
	for _, key := range v.MapKeys() {
		keys[key.String()] = struct{}{}
	}
	return keys
}

// line prints one name. What has no text is a section.
func (p *printer) line(name, text string, at origin, depth int) {
	fmt.Fprintf(&p.out, "%s%s:", strings.Repeat("  ", depth), yamlText(name))
	if text != "" {
		p.out.WriteString(" " + text)
	}
	if at.name != "" {
		p.out.WriteString("  # " + strings.ReplaceAll(at.String(), "\n", " "))
	}
	p.out.WriteByte('\n')
}

func scalarText(v reflect.Value, name string) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case v.Type() == reflect.TypeFor[Secret]() || v.Kind() == reflect.String && isSecretName(name):
		return yamlText(Secret(v.String()).String())
	case v.Type() == durationType:
		return v.Interface().(Duration).String()
	case v.Kind() == reflect.String:
		return yamlText(RedactText(v.String()))
	}
	return fmt.Sprint(v.Interface())
}

// plainText needs no quotes in YAML.
var plainText = regexp.MustCompile(`^[A-Za-z_./~][A-Za-z0-9_./:@+-]*$`)

func yamlText(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".inf", ".nan":
		return strconv.Quote(s)
	}
	if plainText.MatchString(s) && !strings.HasSuffix(s, ":") {
		return s
	}
	return quoteYAML(s)
}

// quoteYAML writes a double-quoted text with the escapes that YAML has.
func quoteYAML(s string) string {
	quoted := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(strings.ReplaceAll(quoted, `\v`, `\x0b`), `\a`, `\x07`)
}

func (p *printer) section(s Section, name string, depth int) {
	if s.IsEmpty() {
		return
	}
	p.line(name, "", origin{}, depth)
	p.nodes(s.s.effective(), depth+1, false)
}

// nodes prints a raw section. Below a secret name everything is secret.
func (p *printer) nodes(n *node, depth int, secret bool) {
	for _, e := range n.entries {
		hide := secret || isSecretName(e.name)
		switch e.value.kind {
		case mapNode:
			p.line(e.name, "", origin{}, depth)
			p.nodes(e.value, depth+1, hide)
		case listNode:
			p.line(e.name, listText(e.value, hide), e.at, depth)
		default:
			p.line(e.name, e.value.yaml(hide), e.at, depth)
		}
	}
}

func listText(n *node, secret bool) string {
	items := make([]string, len(n.items))
	for i, item := range n.items {
		items[i] = item.flow(secret)
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// flow is the node on one line.
func (n *node) flow(secret bool) string {
	switch n.kind {
	case listNode:
		return listText(n, secret)
	case mapNode:
		entries := make([]string, len(n.entries))
		for i, e := range n.entries {
			entries[i] = yamlText(e.name) + ": " + e.value.flow(secret || isSecretName(e.name))
		}
		return "{" + strings.Join(entries, ", ") + "}"
	}
	return n.yaml(secret)
}

// yaml is a scalar as YAML reads it back.
func (n *node) yaml(secret bool) string {
	switch {
	case n.kind == nullNode:
		return "null"
	case secret:
		return redacted
	case n.kind == textNode:
		return yamlText(RedactText(n.text))
	}
	return n.text
}

// effective is the section with its overrides in their places. An override whose name the section's owner
// spells differently stands under its name in lower case.
func (s *section) effective() *node {
	root := &node{kind: mapNode}
	if s.node != nil {
		root = s.node.clone()
	}
	for _, o := range s.over {
		root.set(o)
	}
	return root
}

func (n *node) clone() *node {
	c := *n
	c.entries = make([]entry, len(n.entries))
	for i, e := range n.entries {
		c.entries[i] = entry{e.name, e.value.clone(), e.at}
	}
	return &c
}

func (n *node) set(o override) {
	n.kind = mapNode
	for i, e := range n.entries {
		if deeper, ok := o.descend(e.name); ok {
			n.entries[i] = e.with(deeper)
			return
		}
	}
	deeper, _ := o.descend(o.next())
	n.entries = append(n.entries, entry{name: strings.ToLower(o.next()), value: &node{}}.with(deeper))
}

// with returns the entry with an override that has reached it.
func (e entry) with(o override) entry {
	if o.rest == "" {
		return entry{e.name, &node{kind: textNode, text: o.value(), at: o.at}, o.at}
	}
	e.value.set(o)
	return e
}
