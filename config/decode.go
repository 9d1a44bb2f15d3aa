package config

import (
	"encoding"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoder fills Go values from a node and the overrides below it, strictly, and collects all problems.
type decoder struct {
	problems *problems
	known    Known
	// origins has where each value was written that is not a default.
	origins map[string]origin
}

// rules are the tags of a field that restrict its value.
type rules struct {
	enum  []string
	known string
	check string
}

// field is one name of a struct.
type field struct {
	name  string
	index []int
	rules rules
	typ   reflect.Type
}

// fieldsOf returns the names of a struct: by the tag yaml, else the Go name in snake case. Embedded structs count as written out.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		inline := options == "inline" || f.Anonymous && name == ""
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case inline && f.Type.Kind() == reflect.Struct:
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				fields = append(fields, inner)
			}
			continue
		case name == "":
			name = snakeCase(f.Name)
		}
		fields = append(fields, field{name: name, index: []int{i}, typ: f.Type, rules: rulesOf(f.Tag)})
	}
	return fields
}

func rulesOf(tag reflect.StructTag) rules {
	r := rules{known: tag.Get("known"), check: tag.Get("check")}
	if enum := tag.Get("enum"); enum != "" {
		r.enum = strings.Split(enum, ",")
	}
	return r
}

func snakeCase(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		before := i > 0 && (name[i-1] < 'A' || name[i-1] > 'Z')
		after := i > 0 && i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z'
		if upper && (before || after) {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

var (
	sectionType = reflect.TypeFor[Section]()
	textType    = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value decodes into v what n and over say about path.
func (d *decoder) value(v reflect.Value, n *node, over []override, path string, r rules) {
	switch t := v.Type(); {
	case n == nil && len(over) == 0:
	case t == sectionType:
		d.section(v, n, over, path)
	case isScalar(t):
		d.scalar(v, n, over, path, r)
	case t.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(t.Elem()))
		}
		d.value(v.Elem(), n, over, path, r)
	case t.Kind() == reflect.Struct:
		d.structure(v, n, over, path)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		d.mapping(v, n, over, path, r)
	case t.Kind() == reflect.Slice:
		d.list(v, n, over, path, r)
	case t.Kind() == reflect.Interface && t.NumMethod() == 0:
		d.anything(v, n, over, path)
	default:
		d.problems.add(whereOf(n, over), path, "cannot be configured: the program holds it as %s", t)
	}
}

func whereOf(n *node, over []override) origin {
	if len(over) > 0 {
		return over[len(over)-1].at
	}
	return n.at
}

// noValue reports overrides that end at what has names or items of its own.
func (d *decoder) noValue(over []override, path, what string) []override {
	value, deeper := arrived(over)
	if value != nil {
		d.problems.add(value.at, path, "is %s, and cannot be set as a whole; set one of its names", what)
	}
	return deeper
}

func (d *decoder) section(v reflect.Value, n *node, over []override, path string) {
	over = d.noValue(over, path, "a section")
	if n != nil && n.kind != mapNode && n.kind != nullNode {
		d.problems.add(n.at, path, "is a section: it must be names with values")
		return
	}
	if n != nil {
		d.note(path, n.at)
	}
	v.Set(reflect.ValueOf(Section{&section{path: path, node: n, over: over}}))
}

func (d *decoder) structure(v reflect.Value, n *node, over []override, path string) {
	over = d.noValue(over, path, "a section")
	fields := fieldsOf(v.Type())
	names := namesOf(fields)
	d.unknownNames(n, path, names)
	matched, unknown := splitOverrides(over, names)
	for _, o := range unknown {
		d.problems.add(o.at, "", "unknown name %q%s", o.next(), o.misspelt(o.next(), names, d.sectionsOf(fields)))
	}
	for _, f := range fields {
		d.value(v.FieldByIndex(f.index), n.find(f.name), matched[f.name], join(path, f.name), f.rules)
	}
}

func namesOf(fields []field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// sectionsOf returns how a variable may begin that goes on below one of fields.
func (d *decoder) sectionsOf(fields []field) []string {
	var sections []string
	for _, f := range fields {
		if isScalar(f.typ) || f.typ.Kind() == reflect.Slice {
			continue
		}
		sections = append(sections, envName(f.name))
		for _, name := range d.known.names(f.rules.known) {
			sections = append(sections, envName(f.name)+"__"+envName(name))
		}
	}
	return sections
}

// unknownNames reports what stands in n beside names. At the top level names beginning "x-" are the author's own, for anchors.
func (d *decoder) unknownNames(n *node, path string, names []string) {
	switch {
	case n == nil || n.kind == nullNode:
		return
	case n.kind != mapNode:
		d.problems.add(n.at, path, "is a section: it must be names with values")
		return
	}
	for _, e := range n.entries {
		if !slices.Contains(names, e.name) && !(path == "" && strings.HasPrefix(e.name, "x-")) {
			d.problems.add(e.at, join(path, e.name), "unknown name%s", suggest(e.name, names))
		}
	}
}

func (d *decoder) mapping(v reflect.Value, n *node, over []override, path string, r rules) {
	over = d.noValue(over, path, "a section")
	known := d.known.names(r.known)
	if known != nil || n != nil && n.kind != mapNode {
		d.unknownNames(n, path, known)
	}
	names, matched := d.elementNames(v, n, over, known)
	for _, name := range names {
		d.element(v, n.find(name), matched[name], path, name)
	}
}

// elementNames returns the names of a map's elements, and the overrides for each.
func (d *decoder) elementNames(v reflect.Value, n *node, over []override, known []string) ([]string, map[string][]override) {
	names := slices.Clone(known)
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if n != nil && known == nil {
		for _, e := range n.entries {
			add(e.name)
		}
	}
	for _, key := range v.MapKeys() {
		add(key.String())
	}
	matched, unknown := splitOverrides(over, names)
	var below []string
	if elem := v.Type().Elem(); elem.Kind() == reflect.Struct && elem != sectionType {
		below = namesOf(fieldsOf(elem))
	}
	for _, o := range unknown {
		name, deeper := o.guess(below)
		if known != nil {
			d.problems.add(o.at, "", "unknown name %q%s", name, o.misspelt(name, names, envNames(names)))
			continue
		}
		if o.env {
			name = strings.ToLower(name)
		}
		add(name)
		matched[name] = append(matched[name], deeper)
	}
	return names, matched
}

func (d *decoder) element(v reflect.Value, n *node, over []override, path, name string) {
	if n == nil && len(over) == 0 {
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	key, elem := reflect.ValueOf(name).Convert(v.Type().Key()), reflect.New(v.Type().Elem()).Elem()
	if old := v.MapIndex(key); old.IsValid() {
		elem.Set(old)
	}
	d.value(elem, n, over, join(path, name), rules{})
	v.SetMapIndex(key, elem)
}

func (d *decoder) list(v reflect.Value, n *node, over []override, path string, r rules) {
	value, deeper := arrived(over)
	for _, o := range deeper {
		d.problems.add(o.at, path, "is a list: set the whole of it, with commas between its items")
	}
	if value != nil {
		n = commaList(value.value(), value.at)
	}
	switch {
	case n == nil || n.kind == nullNode:
		return
	case n.kind == mapNode:
		d.problems.add(n.at, path, "is a list: write it as [a, b]")
		return
	case n.kind != listNode:
		n = commaList(n.text, n.at)
	}
	d.note(path, n.at)
	items := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
	for i, item := range n.items {
		d.value(items.Index(i), item, nil, path+"["+strconv.Itoa(i)+"]", r)
	}
	v.Set(items)
}

// commaList reads a list that is written as one text, as variables must.
func commaList(text string, at origin) *node {
	n := &node{kind: listNode, at: at}
	for _, item := range strings.Split(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			n.items = append(n.items, &node{kind: textNode, text: item, at: at})
		}
	}
	return n
}

func (d *decoder) note(path string, at origin) {
	if d.origins != nil {
		d.origins[path] = at
	}
}
