package sqlcore

import (
	"fmt"
	"strings"
)

// Spelling is how a database writes what queries have marks for.
type Spelling interface {
	// Placeholder is the text of the argument of number n, counted from 1.
	Placeholder(n int) string
	// Word is the text of a mark; name is its first word, arg the rest: "now", "clock", "true", "false", "empty", "json", "lock",
	// "share", "skip", "at", "ident", "server".
	Word(name, arg string) (string, bool)
	// Later writes the store's clock plus d.
	Later(w *Text, d Later)
	// Rows writes the rows of a set, each with its number as the last column.
	Rows(w *Text, s *Set)
	// List writes the test whether the value before it is one of the list.
	List(w *Text, l *List)
	// Value turns an argument into what the driver takes.
	Value(v any) any
}

// Text is a query being written.
type Text struct {
	spelling Spelling
	out      strings.Builder
	args     []any
}

// Raw appends s as it is.
func (w *Text) Raw(s string) { w.out.WriteString(s) }

// Arg appends the placeholder of v.
func (w *Text) Arg(v any) {
	w.args = append(w.args, w.spelling.Value(v))
	w.out.WriteString(w.spelling.Placeholder(len(w.args)))
}

// Spell writes a statement in a database's own words. It panics on a mark that the spelling does not know or a
// number of arguments that does not fit, which are mistakes in a query of this package. first are arguments before those of the statement.
func Spell(sp Spelling, s *Stmt, first ...any) (string, []any) {
	if s.Native {
		return s.Query, s.Args
	}
	w := &Text{spelling: sp, args: first}
	rest, args := s.Query, s.Args
	for {
		i := strings.IndexAny(rest, "?{")
		if i < 0 {
			break
		}
		w.out.WriteString(rest[:i])
		if rest[i] == '?' {
			w.Arg(next(&args, s))
			rest = rest[i+1:]
			continue
		}
		end := strings.IndexByte(rest[i:], '}')
		if end < 0 {
			panic("sqlcore: a mark has no end in: " + s.Query)
		}
		w.mark(rest[i+1:i+end], s, &args)
		rest = rest[i+end+1:]
	}
	if len(args) > 0 {
		panic(fmt.Sprintf("sqlcore: %d arguments too many for: %s", len(args), s.Query))
	}
	w.out.WriteString(rest)
	return w.out.String(), w.args
}

func (w *Text) mark(mark string, s *Stmt, args *[]any) {
	name, arg, _ := strings.Cut(mark, " ")
	switch name {
	case "later":
		v := next(args, s)
		if d, ok := v.(Later); ok {
			w.spelling.Later(w, d)
		} else {
			w.Arg(v)
		}
	case "rows":
		w.spelling.Rows(w, s.Set)
	case "list":
		w.spelling.List(w, s.List)
	default:
		word, ok := w.spelling.Word(name, arg)
		if !ok {
			panic(fmt.Sprintf("sqlcore: unknown mark {%s} in: %s", mark, s.Query))
		}
		w.out.WriteString(word)
	}
}

func next(args *[]any, s *Stmt) any {
	if len(*args) == 0 {
		panic("sqlcore: too few arguments for: " + s.Query)
	}
	v := (*args)[0]
	*args = (*args)[1:]
	return v
}
