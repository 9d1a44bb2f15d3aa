package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/gowebpki/jcs"
)

// errInexact is returned by canonicalJSON for a number that a double cannot hold.
var errInexact = errors.New("a number has no exact canonical form")

// canonicalJSON returns the form of RFC 8785. That form holds numbers as doubles, so it writes
// 9007199254740993 and 9007199254740992 alike; a document with such a number is
// refused here, else two payments of different amounts were one.
func canonicalJSON(payload []byte) ([]byte, error) {
	canonical, err := jcs.Transform(payload)
	if err != nil {
		return nil, errors.New("not JSON by RFC 8785")
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return canonical, nil // the end: jcs has read the whole document
		}
		if n, ok := token.(json.Number); ok && !exactDouble(n.String()) {
			return nil, errInexact
		}
	}
}

// exactDouble reports whether the decimal number text and its canonical form are the same number.
func exactDouble(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	canonical, err := jcs.NumberToJSON(f)
	if err != nil {
		return false
	}
	d1, e1 := decimal(text)
	d2, e2 := decimal(canonical)
	return d1 == d2 && (d1 == "" || e1 == e2)
}

// decimal splits a JSON number into its digits, without zeros at either end and with the sign, and the power of
// ten of the last one. Zero has no digits.
func decimal(text string) (digits string, exponent int) {
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		// ParseFloat has read the number before; an exponent too large for an int has failed there.
		exponent, _ = strconv.Atoi(strings.TrimPrefix(text[i+1:], "+"))
		text = text[:i]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	exponent -= len(fraction)
	digits = whole + fraction
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	if trimmed = strings.TrimLeft(trimmed, "0"); trimmed == "" {
		return "", 0
	}
	return sign + trimmed, exponent
}
