package email

import (
	"mime"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/oncemill/oncemill/handlers"
)

const (
	maxAddress = 254 // RFC 5321, with the brackets of the path
	maxLocal   = 64
	maxText    = 255 // characters of a subject or a name
)

// parseAddress reads exactly one address, with or without a name. Errors name the field and never show the address.
func parseAddress(field, text string) (*mail.Address, error) {
	if text == "" {
		return nil, handlers.Permanent(field, "is missing")
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return nil, handlers.Permanent(field, "has control characters")
	}
	a, err := mail.ParseAddress(text)
	// The parser also takes comments and groups, in which more could hide than is shown.
	if err != nil || a.Address != text && !strings.HasSuffix(text, "<"+a.Address+">") {
		return nil, handlers.Permanent(field, "is not one address such as user@example.org or Name <user@example.org>")
	}
	if problem := checkHeader(a.Name); problem != "" {
		return nil, handlers.Permanent(field, "the name "+problem)
	}
	local, domain, _ := strings.Cut(a.Address, "@")
	if len(a.Address) > maxAddress || len(local) > maxLocal || !validLocal(local) || !validDomain(domain) {
		return nil, handlers.Permanent(field, "is not an address of plain ASCII letters, digits and the usual signs")
	}
	return a, nil
}

// validLocal accepts RFC 5321's dot-string: no quotes, no spaces.
func validLocal(local string) bool {
	for _, atom := range strings.Split(local, ".") {
		if atom == "" || strings.ContainsFunc(atom, func(r rune) bool {
			return !letterOrDigit(r) && !strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
		}) {
			return false
		}
	}
	return true
}

func validDomain(domain string) bool {
	if len(domain) > 253 {
		return false
	}
	for _, label := range strings.Split(domain, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !letterOrDigit(r) && r != '-' }) {
			return false
		}
	}
	return true
}

func letterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// checkHeader says what is wrong with text for a header. Readers decode encoded words, some of them again and again, so the
// text is looked at after each decoding.
func checkHeader(text string) string {
	if utf8.RuneCountInString(text) > maxText {
		return "is longer than 255 characters"
	}
	var decoder mime.WordDecoder
	for range 4 {
		if strings.ContainsFunc(text, unicode.IsControl) {
			return "has control characters"
		}
		decoded, err := decoder.DecodeHeader(text)
		if err != nil {
			return "has an encoded word that cannot be read"
		}
		if decoded == text {
			return ""
		}
		text = decoded
	}
	return "has encoded words within encoded words"
}
