package config

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
)

// source is the file with the structs: their comments are the reference's text, so that there is one place for both.
//
//go:embed config.go
var source string

const referenceHead = `# Configuration

Generated from the program's own types; do not edit.

A value comes from the first of these that sets it: a flag, the environment, the YAML file, the default. The file is named by
` + "`--config`, or by the variable `ONCEMILL_CONFIG`" + `.

- **File.** Names that are not known, names given twice and values that make no sense are errors; all are reported at once, with file and
  line. At the top level, names that begin with ` + "`x-`" + ` are yours, to hang anchors on.
- **Environment.** ` + "`ONCEMILL_`" + ` and the path in capitals, levels joined by two underscores, ` + "`-` and `.` written `_`" + `:
  ` + "`ONCEMILL_BROKERS__RABBITMQ__URL`" + ` is ` + "`brokers.rabbitmq.url`" + `. A variable with this prefix that names nothing is an error. Lists are separated by commas.
- **Durations** have a unit: ` + "`500ms`, `30s`, `24h`, `7d`" + `. A bare number is refused.
- **Secrets** are never printed. Where a name ends in ` + "`_file`" + ` the secret is read from that file, again for each use, so that it can be
  changed without a restart.

` + "`oncemill config check`" + ` says what is wrong, ` + "`oncemill config print`" + ` what is in force and where each value was set.
`

// Reference returns the reference of all names, in Markdown.
func Reference() string {
	r := reference{docs: fieldDocs()}
	r.out.WriteString(referenceHead)
	r.structure("", "", reflect.ValueOf(*Defaults()), true)
	return r.out.String()
}

type reference struct {
	out  strings.Builder
	docs map[string]string // by "Type.Field"
}

// part is a struct that is documented after the table that names it.
type part struct {
	path  string
	doc   string
	value reflect.Value
	// fixed says that the defaults are in value; below a map they are told in words.
	fixed bool
}

func (r *reference) structure(path, doc string, v reflect.Value, fixed bool) {
	if path == "" {
		path = "Top level"
		r.out.WriteString("\n## Top level\n")
	} else {
		fmt.Fprintf(&r.out, "\n## `%s`\n", path)
	}
	if doc != "" {
		r.out.WriteString("\n" + doc + "\n")
	}
	r.out.WriteString("\n| name | value | default | meaning |\n|---|---|---|---|\n")
	var parts []part
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		doc := r.docs[v.Type().Name()+"."+f.Name]
		below := name
		if path != "Top level" {
			below = path + "." + name
		}
		if p, ok := r.below(f, v.Field(i), below, doc, fixed); ok {
			parts = append(parts, p)
			continue
		}
		standard := defaultText(v.Field(i), fixed)
		if text, told, ok := strings.Cut(doc, " Defaults to "); ok {
			doc, standard = text, strings.TrimSuffix(told, ".")
		}
		fmt.Fprintf(&r.out, "| `%s` | %s | %s | %s |\n", name, valueText(f), standard, strings.ReplaceAll(doc, "|", "\\|"))
	}
	for _, p := range parts {
		if p.value.IsValid() {
			r.structure(p.path, p.doc, p.value, p.fixed)
			continue
		}
		fmt.Fprintf(&r.out, "\n## `%s`\n\n%s\n", p.path, p.doc)
	}
}

// below returns the part for a field that has names of its own.
func (r *reference) below(f reflect.StructField, v reflect.Value, path, doc string, fixed bool) (part, bool) {
	switch {
	case f.Type == sectionType:
		return part{path: path, doc: doc}, true
	case f.Type.Kind() == reflect.Map && f.Type.Elem() == sectionType:
		return part{path: path + ".NAME", doc: doc}, true
	case f.Type.Kind() == reflect.Map:
		return part{path: path + ".NAME", doc: doc, value: reflect.New(f.Type.Elem()).Elem()}, true
	case f.Type.Kind() == reflect.Struct:
		if doc == "" {
			doc = r.docs[f.Type.Name()]
		}
		return part{path: path, doc: doc, value: v, fixed: fixed}, true
	}
	return part{}, false
}

func valueText(f reflect.StructField) string {
	if enum := f.Tag.Get("enum"); enum != "" {
		return "`" + strings.ReplaceAll(enum, ",", "`, `") + "`"
	}
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case f.Tag.Get("check") == "size":
		return "size"
	case t == durationType:
		return "duration"
	case t == reflect.TypeFor[Secret]():
		return "secret"
	case t.Kind() == reflect.Bool:
		return "`true`, `false`"
	case t.Kind() == reflect.Int:
		return "whole number"
	case t.Kind() == reflect.Float64:
		return "number"
	}
	return "text"
}

func defaultText(v reflect.Value, fixed bool) string {
	if !fixed || v.Kind() == reflect.String && v.Len() == 0 {
		return ""
	}
	if v.Kind() == reflect.String {
		return "`" + v.String() + "`"
	}
	return "`" + scalarText(v, "") + "`"
}

// fieldDocs reads the comments of the structs in source, on one line each.
func fieldDocs() map[string]string {
	docs := map[string]string{}
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return docs // it is the source of this very program: the compiler has read it
	}
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			t := spec.(*ast.TypeSpec)
			docs[t.Name.Name] = sentence(g.Doc.Text(), t.Name.Name)
			s, ok := t.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					docs[t.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
	}
	return docs
}

// sentence turns "Relay publishes the outbox." into "Publishes the outbox.", and "Log is what" into "What".
func sentence(doc, name string) string {
	text := strings.Join(strings.Fields(doc), " ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, name+" "), "is ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
