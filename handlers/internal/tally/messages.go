// Package tally is what counters are made of wherever they are kept: the messages, and the names that they count under.
package tally

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/oncemill/oncemill/handlers"
)

// Add asks to add to a counter; a counter that is not there begins at zero.
type Add struct {
	Counter string `json:"counter"` // 1 to 255 bytes
	Delta   int64  `json:"delta"`   // 1 or more
}

// Request is Add as it arrives: a delta that is no number of 64 bits must be refused with its name.
type Request struct {
	Counter string          `json:"counter"`
	Delta   json.RawMessage `json:"delta"`
}

// Check returns the counter and what is added, or a permanent failure whose code is the field.
func (r Request) Check() (name string, delta int64, err error) {
	if problem := CheckName(r.Counter); problem != "" {
		return "", 0, handlers.Permanent("counter", problem)
	}
	delta, err = r.delta()
	return r.Counter, delta, err
}

func (r Request) delta() (int64, error) {
	text := string(r.Delta)
	if text == "" || text == "null" {
		return 0, handlers.Permanent("delta", "is missing")
	}
	var quoted string
	if json.Unmarshal(r.Delta, &quoted) == nil {
		text = quoted
	}
	// ParseInt alone would take "+5".
	delta, err := strconv.ParseInt(text, 10, 64)
	if err != nil || delta < 1 || text[0] == '+' {
		return 0, handlers.Permanent("delta", "must be a whole number from 1 to 9223372036854775807")
	}
	return delta, nil
}

// Payment is what a counter's name can hold of payments.completed.
type Payment struct {
	Currency string `json:"currency"`
	From     string `json:"from"`
	To       string `json:"to"`
}

// Names returns the counters that the patterns give for the payment, sorted. A name that two patterns give is there once.
func (p Payment) Names(patterns []string) ([]string, error) {
	var names []string
	for _, pattern := range patterns {
		name, err := p.expand(pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// expand puts the payment's fields into a pattern. Each field is put in once: one that looks like a placeholder stays as it is.
func (p Payment) expand(pattern string) (string, error) {
	var pairs []string
	for field, value := range p.fields() {
		if strings.Contains(pattern, "{"+field+"}") && value == "" {
			return "", handlers.Permanent(field, "is missing")
		}
		pairs = append(pairs, "{"+field+"}", value)
	}
	name := strings.NewReplacer(pairs...).Replace(pattern)
	if problem := checkText(name); problem != "" {
		return "", handlers.Permanent("counter", problem)
	}
	return name, nil
}

func (p Payment) fields() map[string]string {
	return map[string]string{"currency": p.Currency, "from": p.From, "to": p.To}
}

// Added is the result of a message.
type Added struct {
	Counters []string `json:"counters"`
	Delta    int64    `json:"delta"`
}

// CheckName says what is wrong with the name of a counter.
func CheckName(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > 255:
		return "is longer than 255 bytes"
	}
	return checkText(name)
}

// checkText refuses what a database cannot keep or cannot tell apart: JSON's decoder puts U+FFFD for bytes that are not UTF-8.
func checkText(name string) string {
	switch {
	case len(name) > 1024:
		return "is longer than 1024 bytes"
	case !utf8.ValidString(name), strings.ContainsRune(name, utf8.RuneError):
		return "is not valid UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "has control characters"
	}
	return ""
}
