package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// PermanentError is a failure that no retry mends: the message becomes a dead letter at once.
type PermanentError struct {
	Code string // short, constant: it is the reason of the dead letter
	Text string
}

// Permanent returns a PermanentError. text is shown to people; it must not hold secrets.
func Permanent(code, text string) error { return &PermanentError{Code: code, Text: text} }

// Permanentf is Permanent with a formatted text.
func Permanentf(code, format string, args ...any) error {
	return Permanent(code, fmt.Sprintf(format, args...))
}

func (e *PermanentError) Error() string { return e.Code + ": " + e.Text }

// Permanent returns the code. Any error with this method counts as permanent.
func (e *PermanentError) Permanent() string { return e.Code }

// UnknownError is a call whose outcome is not known.
type UnknownError struct{ err error }

// Unknown wraps err: the call may or may not have had its effect.
func Unknown(err error) error { return &UnknownError{err} }

func (e *UnknownError) Error() string { return "outcome unknown: " + e.err.Error() }

func (e *UnknownError) Unwrap() error { return e.err }

// OutcomeUnknown marks the error. Any error with this method counts as unknown.
func (e *UnknownError) OutcomeUnknown() {}

// RetryError asks for the next attempt after a time.
type RetryError struct {
	err   error
	after time.Duration
}

// RetryAfter wraps err: the next attempt is due after d, whatever the binding's backoff says; it counts as an attempt.
func RetryAfter(d time.Duration, err error) error { return &RetryError{err, d} }

func (e *RetryError) Error() string { return e.err.Error() }

func (e *RetryError) Unwrap() error { return e.err }

// RetryAfter returns the wait. Any error with this method is understood.
func (e *RetryError) RetryAfter() time.Duration { return e.after }

// describe cuts from a JSON error what could be payload.
func describe(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Sprintf("field %q cannot hold a JSON %s", kind.Field, jsonKind(kind.Value))
	case errors.As(err, &syntax):
		return fmt.Sprintf("not JSON at byte %d", syntax.Offset)
	}
	return "not JSON of the expected form"
}

// jsonKind keeps the kind's name of a type error and drops a literal that may follow it ("number 12.5").
func jsonKind(value string) string {
	for i, r := range value {
		if r == ' ' {
			return value[:i]
		}
	}
	return value
}
