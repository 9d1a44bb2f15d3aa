package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	// Where is file and line, the name of an environment variable, or a flag.
	Where string
	// Path is the dotted name of what is wrong; empty for the file as a whole.
	Path string
	// Text says what is wrong and what to do. It has no secrets.
	Text string
}

func (p Problem) String() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Where != "" {
		text = p.Where + ": " + text
	}
	return text
}

// Error is everything that is wrong with the configuration.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return "configuration: " + strings.Join(lines, "\nconfiguration: ")
}

// problems collects what is wrong.
type problems struct{ list []Problem }

func (p *problems) add(where origin, path, format string, args ...any) {
	p.list = append(p.list, Problem{Where: where.String(), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return &Error{p.list}
}
