package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want Cause
	}{
		{&envelope.Violation{Rule: envelope.RulePayloadTooLarge}, CauseContract},
		{ErrUnpublishable, CauseUnpublishable},
		{ErrUnroutable, CauseUnroutable},
		{ErrUnavailable, CauseUnavailable},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, CauseUnavailable},
		{&net.DNSError{}, CauseUnavailable},
		{io.EOF, CauseUnavailable},
		{net.ErrClosed, CauseUnavailable},
		{context.DeadlineExceeded, CauseUnavailable},
		{errors.New("anything else"), CauseRefused},
	} {
		require.Equal(t, c.want, causeOf(fmt.Errorf("publish: %w", c.err)), "%v", c.err)
	}
}

func relayFor(t *testing.T, maxAttempts int) *Relay {
	t.Helper()
	r, err := NewRelay(RelayConfig{Source: struct{ Source }{}, Publisher: struct{ Publisher }{}, Owner: "o", MaxAttempts: maxAttempts})
	require.NoError(t, err)
	return r
}

// TestBackoffWithDefaultsLastsAnHour: what MaxAttempts promises in its comment.
func TestBackoffWithDefaultsLastsAnHour(t *testing.T) {
	t.Parallel()
	r := relayFor(t, 0)
	var total, last time.Duration
	for attempts := range r.cfg.MaxAttempts - 1 {
		wait := r.byAttempts(attempts)
		require.LessOrEqual(t, wait, r.cfg.BackoffMax)
		require.GreaterOrEqual(t, wait, r.cfg.BackoffMin*3/4)
		if attempts < 9 {
			require.Greater(t, wait, last)
		}
		last = wait
		total += wait
	}
	require.InDelta(t, time.Hour, total, float64(20*time.Minute))
}

func TestUncountedBackoffGrowsWithTheAge(t *testing.T) {
	t.Parallel()
	r := relayFor(t, 0)
	at := func(age time.Duration) time.Duration {
		return r.byAge(Record{CreatedAt: time.Now().Add(-age)}, uncountedBackoff)
	}
	require.LessOrEqual(t, at(0), r.cfg.BackoffMin)
	require.InDelta(t, 5*time.Second, at(20*time.Second), float64(1500*time.Millisecond))
	require.LessOrEqual(t, at(24*time.Hour), uncountedBackoff)
	require.Greater(t, at(24*time.Hour), uncountedBackoff/2)
	require.LessOrEqual(t, at(-time.Hour), r.cfg.BackoffMin, "a clock that is behind")
	delayed := Record{CreatedAt: time.Now().Add(-time.Hour), DeliverAt: time.Now()}
	require.LessOrEqual(t, r.byAge(delayed, uncountedBackoff), r.cfg.BackoffMin, "a delayed record is as old as its time")
}

func TestReasonCanBeStored(t *testing.T) {
	t.Parallel()
	got := reason(errors.New("nul \x00 bad \xff " + strings.Repeat("\u00e4", 2000)))
	require.True(t, utf8.ValidString(got))
	require.NotContains(t, got, "\x00")
	require.LessOrEqual(t, len(got), maxReason)
}

func TestNewRelayNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]RelayConfig{
		"Source":    {Publisher: struct{ Publisher }{}, Owner: "o"},
		"Publisher": {Source: struct{ Source }{}, Owner: "o"},
		"Owner":     {Source: struct{ Source }{}, Publisher: struct{ Publisher }{}},
	} {
		_, err := NewRelay(cfg)
		require.ErrorContains(t, err, want)
	}
}
