package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// origin is where a value was written: a line of a file, or a variable or flag.
type origin struct {
	name string
	line int // 0 for a variable or flag
}

func (o origin) String() string {
	if o.line == 0 {
		return o.name
	}
	return o.name + ":" + strconv.Itoa(o.line)
}

// kind is what a node is.
type kind int

const (
	nullNode kind = iota
	textNode
	numberNode
	boolNode
	mapNode
	listNode
)

// node is a value of the file, with its place.
type node struct {
	kind    kind
	text    string // of a scalar, as it is written
	entries []entry
	items   []*node
	at      origin
}

// entry is one name of a map.
type entry struct {
	name  string
	value *node
	at    origin
}

func (n *node) find(name string) *node {
	if n == nil {
		return nil
	}
	for _, e := range n.entries {
		if e.name == name {
			return e.value
		}
	}
	return nil
}

// treeBuilder turns the parser's tree into nodes.
type treeBuilder struct {
	file     string
	anchors  map[string]*node
	problems *problems
}

// parseYAML returns the one document of content, nil where it is empty.
func parseYAML(file string, content []byte, p *problems) *node {
	tree, err := parser.ParseBytes(content, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		where, text := syntaxError(file, err)
		p.add(where, "", "%s", text)
		return nil
	}
	b := treeBuilder{file: file, anchors: map[string]*node{}, problems: p}
	var root *node
	for _, doc := range tree.Docs {
		if doc.Body == nil {
			continue
		}
		if root != nil {
			p.add(b.at(doc.Body.GetToken()), "", "a second YAML document begins here; the configuration is one document")
			break
		}
		root = b.build(doc.Body, "")
	}
	if root != nil && root.kind != mapNode && root.kind != nullNode {
		p.add(root.at, "", "the configuration must be names with values, such as broker: rabbitmq")
		return nil
	}
	return root
}

// quotedText is what a syntax error quotes of the file, which may be a secret.
var quotedText = regexp.MustCompile(`:? *"[^"]*"`)

func syntaxError(file string, err error) (origin, string) {
	var y yaml.Error
	if !errors.As(err, &y) {
		return origin{name: file}, "is not YAML"
	}
	where := origin{name: file}
	if tk := y.GetToken(); tk != nil && tk.Position != nil {
		where.line = tk.Position.Line
	}
	return where, "is not YAML: " + quotedText.ReplaceAllString(y.GetMessage(), "")
}

func (b *treeBuilder) at(tk *token.Token) origin {
	if tk == nil || tk.Position == nil {
		return origin{name: b.file}
	}
	return origin{b.file, tk.Position.Line}
}

func (b *treeBuilder) build(n ast.Node, path string) *node {
	out := &node{at: b.at(n.GetToken())}
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		out.kind, out.text = boolNode, n.GetToken().Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = numberNode, n.GetToken().Value
	case *ast.StringNode:
		out.kind, out.text = textNode, n.Value
	case *ast.LiteralNode:
		out.kind, out.text = textNode, n.Value.Value
	case *ast.TagNode:
		return b.tagged(n, path)
	case *ast.AnchorNode:
		value := b.build(n.Value, path)
		b.anchors[n.Name.GetToken().Value] = value
		return value
	case *ast.AliasNode:
		if value, ok := b.anchors[n.Value.GetToken().Value]; ok {
			return value
		}
		b.problems.add(out.at, path, "*%s has no anchor before it", n.Value.GetToken().Value)
	case *ast.MappingNode:
		out.kind = mapNode
		b.entries(out, n.Values, path)
	case *ast.MappingValueNode:
		out.kind = mapNode
		b.entries(out, []*ast.MappingValueNode{n}, path)
	case *ast.SequenceNode:
		out.kind = listNode
		for i, item := range n.Values {
			out.items = append(out.items, b.build(item, fmt.Sprintf("%s[%d]", path, i)))
		}
	default:
		b.problems.add(out.at, path, "this kind of YAML (%s) has no use here", n.Type().YAMLName())
	}
	return out
}

func (b *treeBuilder) tagged(n *ast.TagNode, path string) *node {
	out := b.build(n.Value, path)
	if n.Start.Value == "!!str" && out.kind != mapNode && out.kind != listNode {
		out.kind = textNode
	}
	return out
}

func (b *treeBuilder) entries(out *node, values []*ast.MappingValueNode, path string) {
	lines := map[string]origin{}
	var merged []*node
	for _, value := range values {
		where := b.at(value.Key.GetToken())
		if value.Key.IsMergeKey() {
			merged = append(merged, b.build(value.Value, path))
			continue
		}
		name := value.Key.GetToken().Value
		if first, twice := lines[name]; twice {
			b.problems.add(where, join(path, name), "is given twice, first on line %d; keep one", first.line)
			continue
		}
		lines[name] = where
		child := b.build(value.Value, join(path, name))
		if child.kind < mapNode {
			// A value that begins on the next line, or is an alias, is found by the line of its name.
			c := *child
			c.at = where
			child = &c
		}
		out.entries = append(out.entries, entry{name, child, where})
	}
	for _, m := range merged {
		out.merge(m)
	}
}

// merge adds the entries of other that n has not. A list is merged one by one.
func (n *node) merge(other *node) {
	for _, item := range other.items {
		n.merge(item)
	}
	for _, e := range other.entries {
		if n.find(e.name) == nil {
			n.entries = append(n.entries, e)
		}
	}
}

// join makes a dotted path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
