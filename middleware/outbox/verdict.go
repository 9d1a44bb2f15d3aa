package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// maxReason is what is kept of a reason.
const maxReason = 1 << 10

// errNoOutcome is a record's error when the publisher returned fewer errors than messages.
var errNoOutcome = errors.New("publisher returned no outcome for the message")

// IsUnavailable reports whether err, of a Publisher, says nothing about its message, so that the relay counts no attempt.
func IsUnavailable(err error) bool { return err != nil && causeOf(err) == CauseUnavailable }

// causeOf classifies an error of the publisher.
func causeOf(err error) Cause {
	var violation *envelope.Violation
	var network net.Error
	switch {
	case errors.As(err, &violation):
		return CauseContract
	case errors.Is(err, ErrUnpublishable):
		return CauseUnpublishable
	case errors.Is(err, ErrUnroutable):
		return CauseUnroutable
	case errors.Is(err, ErrUnavailable), errors.As(err, &network),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return CauseUnavailable
	default:
		return CauseRefused
	}
}

// judge decides what becomes of a record that was not published in a round that began at begin.
func (r *Relay) judge(o outcome, begin time.Time) Failure {
	f := Failure{ID: o.rec.ID, Reason: reason(o.err)}
	switch o.cause {
	case CauseContract, CauseUnpublishable:
		f.Aside = true
	case CauseUnroutable:
		f.Uncounted, f.RetryIn = true, r.byAge(o.rec, uncountedBackoff)
	case CauseUnavailable:
		f.Uncounted, f.RetryIn = true, r.byAge(o.rec, outageBackoff)
		if r.provenSince(begin) { // others get through: it is this topic's trouble, let the others pass
			f.RetryIn = r.byAge(o.rec, uncountedBackoff)
		}
	default:
		r.judgeRefusal(&f, o)
	}
	return f
}

// proofLasts is how long a confirmed message proves that the broker can be reached. With the default backoff a record does
// not come to MaxAttempts in that time.
const proofLasts = 10 * time.Minute

// judgeRefusal counts a refusal where the broker confirmed something lately. Without that it may be an outage that the
// adapter does not mark, and nothing is held against the record.
func (r *Relay) judgeRefusal(f *Failure, o outcome) {
	if !r.provenSince(time.Now().Add(-proofLasts)) {
		f.Uncounted, f.RetryIn = true, r.byAge(o.rec, uncountedBackoff)
		return
	}
	f.RetryIn = r.byAttempts(o.rec.Attempts)
	if o.rec.Attempts+1 >= r.cfg.MaxAttempts {
		f.Aside = true
		f.Reason = reason(fmt.Errorf("set aside after %d attempts: %w", o.rec.Attempts+1, o.err))
	}
}

// Failures that are not counted cannot be timed by their count; these bound the wait instead, so that
// records go out soon after the broker is back or the queue is made.
const (
	outageBackoff    = 5 * time.Second
	uncountedBackoff = time.Minute
)

// byAttempts is the wait before the next attempt, doubled by each.
func (r *Relay) byAttempts(attempts int) time.Duration {
	wait := r.cfg.BackoffMin
	for range attempts {
		if wait *= 2; wait >= r.cfg.BackoffMax {
			wait = r.cfg.BackoffMax
			break
		}
	}
	return jitter(wait)
}

// byAge is the wait before the next attempt where attempts are not counted: it grows with the record's age.
// The record's age mixes the store's clock with ours, which only makes the wait longer or shorter within its bounds.
func (r *Relay) byAge(rec Record, most time.Duration) time.Duration {
	most = max(min(most, r.cfg.BackoffMax), r.cfg.BackoffMin)
	return jitter(min(max(time.Since(dueSince(rec))/4, r.cfg.BackoffMin), most))
}

func dueSince(rec Record) time.Time {
	if rec.DeliverAt.After(rec.CreatedAt) {
		return rec.DeliverAt
	}
	return rec.CreatedAt
}

// jitter takes up to a quarter off, so that what failed together is not retried together.
func jitter(d time.Duration) time.Duration {
	if d < 4 {
		return d
	}
	return d - rand.N(d/4)
}

// reason is the error's text as every store can keep it: valid UTF-8, no NUL, bounded.
func reason(err error) string {
	text := strings.ReplaceAll(err.Error(), "\x00", "\uFFFD")
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}
