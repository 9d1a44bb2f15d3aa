package config

import (
	"fmt"
	"io"
	"reflect"
)

// Section is a part of the configuration whose names only an adapter or plugin knows. Its zero
// value is an empty section. It never prints what is in it.
type Section struct{ s *section }

type section struct {
	path string
	node *node
	over []override
}

// Decode fills what ptr points to, a struct with yaml tags, from the section and from the environment variables
// and flags below its name. What is not set stays as it is, so defaults are what stands there before. Names and durations are read
// as strictly as everywhere; time.Duration, Duration, maps by text, slices, nested structs and encoding.TextUnmarshaler are understood, and
// the tags enum:"a,b" and check:"positive|not-negative|size". The error is an *Error with all problems.
func (s Section) Decode(ptr any) error {
	v := reflect.ValueOf(ptr)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("decode configuration: %T is not a pointer to fill", ptr)
	}
	if s.s == nil {
		return nil
	}
	p := &problems{}
	d := decoder{problems: p}
	d.value(v.Elem(), s.s.node, s.s.over, s.s.path, rules{})
	return p.err()
}

// IsEmpty reports whether nothing is set in the section.
func (s Section) IsEmpty() bool {
	return s.s == nil || len(s.s.over) == 0 && (s.s.node == nil || len(s.s.node.entries) == 0)
}

// Format prints the section's name at most, for every verb.
func (s Section) Format(f fmt.State, _ rune) {
	path := ""
	if s.s != nil {
		path = s.s.path
	}
	_, _ = io.WriteString(f, "section("+path+")")
}
