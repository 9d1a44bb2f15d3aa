package counters

import (
	"encoding/json"
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

// addRequest is Add as it arrives: a delta that is no number of 64 bits must be refused with its name.
type addRequest struct {
	Counter string          `json:"counter"`
	Delta   json.RawMessage `json:"delta"`
}

func (r addRequest) delta() (int64, error) {
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

// payment is what a counter's name can hold of payments.completed.
type payment struct {
	Currency string `json:"currency"`
	From     string `json:"from"`
	To       string `json:"to"`
}

// expand puts the payment's fields into a pattern. Each field is put in once: one that looks like a placeholder stays as it is.
func (p payment) expand(pattern string) (string, error) {
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

func (p payment) fields() map[string]string {
	return map[string]string{"currency": p.Currency, "from": p.From, "to": p.To}
}

// checkName says what is wrong with the name of a counter.
func checkName(name string) string {
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
