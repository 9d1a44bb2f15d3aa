package email

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/mail"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	gomail "github.com/wneessen/go-mail"

	"github.com/oncemill/oncemill/handlers"
)

// Requested asks for a letter. All fields are needed.
type Requested struct {
	To      string `json:"to"` // user@example.org or Name <user@example.org>
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// letter is a checked letter.
type letter struct {
	messageID string
	to        *mail.Address
	subject   string
	text      string
}

// newLetter checks everything that comes from outside.
func newLetter(to, subject, text string) (letter, error) {
	address, err := parseAddress("to", to)
	if err != nil {
		return letter{}, err
	}
	if subject == "" {
		return letter{}, handlers.Permanent("subject", "is missing")
	}
	if problem := checkHeader(subject); problem != "" {
		return letter{}, handlers.Permanent("subject", problem)
	}
	if text == "" {
		return letter{}, handlers.Permanent("text", "is missing")
	}
	return letter{to: address, subject: subject, text: text}, nil
}

// requested reads the letter of email.requested.
func requested(msg *message.Message) (letter, error) {
	r, err := handlers.Decode[Requested](msg)
	if err != nil {
		return letter{}, err
	}
	return newLetter(r.To, r.Subject, r.Text)
}

func (l letter) sent(reply string) Sent {
	return Sent{MessageID: l.messageID, To: l.to.Address, Subject: l.subject, Reply: reply}
}

// encode returns the letter as it goes to the server, with CRLF.
func (l letter) encode(from *mail.Address) ([]byte, error) {
	m := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	m.FromMailAddress(from)
	m.ToMailAddress(l.to)
	m.Subject(l.subject)
	m.SetMessageIDWithValue(l.messageID)
	m.SetGenHeader("Auto-Submitted", "auto-generated") // keeps holiday replies from answering
	m.SetBodyString(gomail.TypeTextPlain, l.text)
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("compose the letter: %w", err)
	}
	return b.Bytes(), nil
}

// payment is what a confirmation can show of payments.completed.
type payment struct {
	PaymentID word `json:"payment_id"`
	From      word `json:"from"`
	To        word `json:"to"`
	Amount    word `json:"amount"`
	Currency  word `json:"currency"`
}

// word is a JSON string, or a number as it is written.
type word string

func (w *word) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) == nil {
		*w = word(s)
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(text, &n); err != nil {
		return errors.New("neither a string nor a number")
	}
	*w = word(n)
	return nil
}

func (p payment) pairs() []string {
	return []string{
		"{payment_id}", string(p.PaymentID), "{from}", string(p.From), "{to}", string(p.To),
		"{amount}", string(p.Amount), "{currency}", string(p.Currency),
	}
}

// letter reads the letter for payments.completed. A field that looks like a placeholder is not replaced again.
func (c Confirmation) letter(msg *message.Message) (letter, error) {
	p, err := handlers.Decode[payment](msg)
	if err != nil {
		return letter{}, err
	}
	pairs := p.pairs()
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" && strings.Contains(c.To+c.Subject+c.Text, pairs[i]) {
			return letter{}, handlers.Permanent(strings.Trim(pairs[i], "{}"), "is missing")
		}
	}
	replacer := strings.NewReplacer(pairs...)
	return newLetter(replacer.Replace(c.To), replacer.Replace(c.Subject), replacer.Replace(c.Text))
}

func (c Confirmation) validate() (problems []error) {
	sample := strings.NewReplacer(payment{"p", "a", "b", "1", "EUR"}.pairs()...)
	for _, field := range []struct{ name, text string }{{"to", c.To}, {"subject", c.Subject}, {"text", c.Text}} {
		rest := sample.Replace(field.text)
		switch {
		case field.text == "":
			problems = append(problems, fmt.Errorf("confirmation.%s: is missing", field.name))
		case field.name != "text" && strings.ContainsAny(rest, "{}"):
			problems = append(problems, fmt.Errorf(
				"confirmation.%s: the placeholders are {payment_id}, {from}, {to}, {amount} and {currency}", field.name))
		}
	}
	if len(problems) == 0 {
		if _, err := newLetter(sample.Replace(c.To), sample.Replace(c.Subject), sample.Replace(c.Text)); err != nil {
			problems = append(problems, fmt.Errorf("confirmation.%w", err))
		}
	}
	return problems
}
