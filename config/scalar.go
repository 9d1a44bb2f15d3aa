package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	durationType    = reflect.TypeFor[Duration]()
	stdDurationType = reflect.TypeFor[time.Duration]()
)

func isScalar(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		return isScalar(t.Elem())
	}
	if reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

func (d *decoder) scalar(v reflect.Value, n *node, over []override, path string, r rules) {
	value, deeper := arrived(over)
	for _, o := range deeper {
		d.problems.add(o.at, path, "has no names below it, such as %q", o.rest)
	}
	if value != nil {
		n = &node{kind: textNode, text: value.value(), at: value.at}
	}
	switch {
	case n == nil:
		return
	case n.kind == nullNode:
		d.problems.add(n.at, path, "has no value; write one, or remove the name")
		return
	case n.kind == mapNode || n.kind == listNode:
		d.problems.add(n.at, path, "must be %s", wanted(v.Type()))
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	d.note(path, n.at)
	r.enum = d.enum(r)
	if err := setScalar(v, n.text, r); err != nil {
		d.problems.add(n.at, path, "%s %s", quoteValue(path, n.text), err)
	}
}

// enum is the closed set of values, where there is one: what this program has, else all.
func (d *decoder) enum(r rules) []string {
	if len(r.enum) > 0 && r.known != "" {
		if known := d.known.names(r.known); known != nil {
			return known
		}
	}
	return r.enum
}

func setScalar(v reflect.Value, text string, r rules) error {
	t := v.Type()
	switch {
	case t == durationType || t == stdDurationType:
		return setDuration(v, text, r)
	case reflect.PointerTo(t).Implements(textType):
		if v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) != nil {
			return fmt.Errorf("is not valid here")
		}
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString(text)
		return checkEnum(text, r)
	case reflect.Bool:
		return setBool(v, text)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, t.Bits())
		if err != nil || f != f {
			return errors.New("is not a number")
		}
		v.SetFloat(f)
		return nil
	}
	return setInt(v, text, r)
}

func checkEnum(text string, r rules) error {
	if len(r.enum) == 0 || slices.Contains(r.enum, text) {
		return nil
	}
	return fmt.Errorf("is not one of its values%s", suggest(text, r.enum))
}

func setBool(v reflect.Value, text string) error {
	switch text {
	case "true":
		v.SetBool(true)
	case "false":
		v.SetBool(false)
	case "yes", "on", "1", "True", "TRUE", "y":
		return errors.New("is neither true nor false; did you mean true?")
	case "no", "off", "0", "False", "FALSE", "n":
		return errors.New("is neither true nor false; did you mean false?")
	default:
		return errors.New("is neither true nor false")
	}
	return nil
}

func setDuration(v reflect.Value, text string, r rules) error {
	d, err := ParseDuration(text)
	switch {
	case errors.Is(err, errNoUnit):
		return fmt.Errorf("has no unit; write %ss, %sm, %sh or %sd", text, text, text, text)
	case err != nil:
		return fmt.Errorf("%w such as 500ms, 30s, 24h or 7d", err)
	}
	v.SetInt(int64(d))
	return checkSign(int64(d), r)
}

func setInt(v reflect.Value, text string, r rules) error {
	n, err := parseInt(text, r)
	if err != nil {
		return err
	}
	if v.CanUint() {
		if n < 0 || v.OverflowUint(uint64(n)) {
			return errors.New("is out of range")
		}
		v.SetUint(uint64(n))
	} else {
		if v.OverflowInt(n) {
			return errors.New("is out of range")
		}
		v.SetInt(n)
	}
	return checkSign(n, r)
}

func parseInt(text string, r rules) (int64, error) {
	if r.check == "size" {
		return parseSize(text)
	}
	// Underscores and other bases are not read: 010 is ten to one reader and eight to another.
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || len(strings.TrimLeft(text, "-")) > 1 && strings.HasPrefix(strings.TrimLeft(text, "-"), "0") {
		return 0, errors.New("is not a whole number")
	}
	return n, nil
}

func checkSign(n int64, r rules) error {
	switch {
	case r.check == "not-negative" && n < 0:
		return errors.New("must not be negative")
	case (r.check == "positive" || r.check == "size") && n <= 0:
		return errors.New("must be greater than zero")
	}
	return nil
}

func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType || t == stdDurationType:
		return "a duration such as 30s"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "a text"
	}
	return "a number"
}

// quoteValue shows a value in a problem, unless it may be a secret.
func quoteValue(path, text string) string {
	if isSecretName(path[strings.LastIndexByte(path, '.')+1:]) {
		return "the value"
	}
	if text = RedactText(text); len(text) > 60 {
		text = text[:60] + "…"
	}
	return strconv.Quote(text)
}

// anything decodes into an interface value what YAML says of itself.
func (d *decoder) anything(v reflect.Value, n *node, over []override, path string) {
	value, deeper := arrived(over)
	for _, o := range deeper {
		d.problems.add(o.at, path, "can be set from here as a whole only")
	}
	if value != nil {
		v.Set(reflect.ValueOf(value.value()))
		return
	}
	if n != nil {
		if plain := n.plain(); plain != nil {
			v.Set(reflect.ValueOf(plain))
		}
	}
}

// plain is the node as Go's plain types.
func (n *node) plain() any {
	switch n.kind {
	case textNode:
		return n.text
	case boolNode:
		return n.text == "true"
	case numberNode:
		if i, err := strconv.ParseInt(n.text, 10, 64); err == nil {
			return i
		}
		if f, err := strconv.ParseFloat(n.text, 64); err == nil {
			return f
		}
		return n.text
	case mapNode:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			m[e.name] = e.value.plain()
		}
		return m
	case listNode:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = item.plain()
		}
		return l
	}
	return nil
}
