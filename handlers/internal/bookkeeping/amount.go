package bookkeeping

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/bojanz/currency"

	"github.com/oncemill/oncemill/handlers"
)

// Amount is a decimal amount as it was written, such as "78.43". It is checked where it is used, together with its currency.
type Amount string

// UnmarshalJSON takes the text of a JSON string or the digits of a JSON number, unchanged. It never fails, so that a bad amount
// is refused with its field's name: anything else is kept as it is written, and no amount begins like that.
func (a *Amount) UnmarshalJSON(text []byte) error {
	var s string
	switch {
	case string(text) == "null":
		*a = ""
	case json.Unmarshal(text, &s) == nil:
		*a = Amount(s)
	default:
		*a = Amount(text)
	}
	return nil
}

// digitsOf returns how many fraction digits the currency has.
func digitsOf(code string) (int, error) {
	if code == "" {
		return 0, handlers.Permanent("currency", "is missing")
	}
	digits, known := currency.GetDigits(code)
	if !known {
		return 0, handlers.Permanent("currency", "is not a currency code of ISO 4217")
	}
	return int(digits), nil
}

// minor returns the amount in minor units of a currency with so many fraction digits, zero or more, and a
// permanent failure with field as its code for everything that is no such amount.
func (a Amount) minor(field string, digits int) (int64, error) {
	refuse := func(text string) (int64, error) { return 0, handlers.Permanent(field, text) }
	text := string(a)
	if text == "" {
		return refuse("is missing")
	}
	if negative, found := strings.CutPrefix(text, "-"); found && decimal(negative) {
		return refuse("must not be negative")
	}
	if !decimal(text) {
		return refuse(`must be digits, with a "." before the fraction`)
	}
	whole, fraction, _ := strings.Cut(text, ".")
	if len(fraction) > digits {
		return refuse("has more than the " + strconv.Itoa(digits) + " fraction digits of its currency")
	}
	units, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", digits-len(fraction)), 10, 64)
	if err != nil {
		return refuse("is more than " + string(amountOf(math.MaxInt64, digits)))
	}
	return units, nil
}

// positive is minor without zero.
func (a Amount) positive(field string, digits int) (int64, error) {
	units, err := a.minor(field, digits)
	if err == nil && units == 0 {
		return 0, handlers.Permanent(field, "must be more than zero")
	}
	return units, err
}

// decimal reports whether text is an unsigned decimal without needless zeros in front.
func decimal(text string) bool {
	whole, fraction, point := strings.Cut(text, ".")
	if point && fraction == "" || whole == "" || len(whole) > 1 && whole[0] == '0' {
		return false
	}
	return strings.Trim(whole, "0123456789") == "" && strings.Trim(fraction, "0123456789") == ""
}

// amountOf writes minor units, zero or more, as a decimal with all fraction digits.
func amountOf(units int64, digits int) Amount {
	text := strconv.FormatInt(units, 10)
	if digits == 0 {
		return Amount(text)
	}
	if missing := digits + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	return Amount(text[:len(text)-digits] + "." + text[len(text)-digits:])
}
