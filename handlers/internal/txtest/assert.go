package txtest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
)

// RequirePermanent checks that err is a permanent failure with that code, and returns its text.
func RequirePermanent(t testing.TB, err error, code string) string {
	t.Helper()
	var permanent *handlers.PermanentError
	require.ErrorAs(t, err, &permanent)
	require.Equal(t, code, permanent.Code, "the reason of the dead letter (%v)", err)
	return permanent.Text
}

// RequireTransient checks that err is a failure that is tried again: neither permanent nor unknown.
func RequireTransient(t testing.TB, err error) {
	t.Helper()
	require.Error(t, err)
	var permanent *handlers.PermanentError
	var unknown *handlers.UnknownError
	require.False(t, errors.As(err, &permanent), "must not be permanent: %v", err)
	require.False(t, errors.As(err, &unknown), "must not be unknown: %v", err)
}

// RequireUnknown checks that the outcome is said to be unknown.
func RequireUnknown(t testing.TB, err error) {
	t.Helper()
	var unknown *handlers.UnknownError
	require.ErrorAs(t, err, &unknown)
}
