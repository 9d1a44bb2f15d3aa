package email

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"strings"
	"unicode"

	"github.com/emersion/go-smtp"

	"github.com/oncemill/oncemill/handlers"
)

// step is how far a conversation with the server came. The order counts.
type step int

const (
	atConnect step = iota // the connection, TLS and the greeting
	atLogin
	atMail
	atRcpt
	atData
	atLetter // the server has asked for the letter
)

func (s step) String() string {
	return [...]string{"connect", "login", "MAIL FROM", "RCPT TO", "DATA", "letter"}[s]
}

// Answers of a server (RFC 5321, RFC 4954).
const (
	codeLoginNeeded = 530
	codeTooLarge    = 552
)

// failure says what an error means for the letter. No text holds an address: servers like to repeat them.
func (s *smtpTransport) failure(ctx context.Context, at step, err error) error {
	var answer *smtp.SMTPError
	answered := errors.As(err, &answer)
	var noise textproto.ProtocolError
	switch {
	case answered:
	case ctx.Err() != nil:
		err = context.Cause(ctx) // the connection was closed because of it
	case errors.As(err, &noise):
		err = errors.New("an answer that is not SMTP") // noise quotes it
	}
	where := fmt.Sprintf("smtp %s at %s", at, s.cfg.Host)
	switch {
	case answered && refused(at, answer.Code):
		return handlers.Permanent("smtp-refused", fmt.Sprintf("%s: %s", where, answerText(answer)))
	case answered && at == atLetter && answer.Code < 400:
		return handlers.Unknown(fmt.Errorf("%s: unexpected answer %s", where, answerText(answer)))
	case !answered && at == atLetter:
		return handlers.Unknown(fmt.Errorf("%s: %w", where, err))
	case at == atLogin && answered:
		// A server's text about a login is not repeated: it may quote what was sent.
		return fmt.Errorf("%s: refused with %d; check smtp.username and smtp.password", where, answer.Code)
	case answered:
		return fmt.Errorf("%s: %s", where, answerText(answer))
	}
	return fmt.Errorf("%s: %w", where, err)
}

// refused reports whether the letter itself was refused for good, and not the sender's configuration.
func refused(at step, code int) bool {
	switch {
	case code < 500 || code == codeLoginNeeded:
		return false
	case at == atMail:
		return code == codeTooLarge
	}
	return at >= atRcpt
}

// answerText is a server's answer without addresses.
func answerText(answer *smtp.SMTPError) string {
	code := fmt.Sprint(answer.Code)
	if e := answer.EnhancedCode; e[0] > 0 {
		code += fmt.Sprintf(" %d.%d.%d", e[0], e[1], e[2])
	}
	words := strings.Fields(printable(answer.Message))
	for i, word := range words {
		if strings.Contains(word, "@") {
			words[i] = "(address)"
		}
	}
	return strings.TrimSpace(code + " " + strings.Join(words, " "))
}

// printable makes one short line of a server's text.
func printable(text string) string {
	const longest = 200
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if runes := []rune(line); len(runes) > longest {
		line = string(runes[:longest])
	}
	return strings.TrimSpace(line)
}
