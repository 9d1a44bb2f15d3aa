package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// class is the kind of a failure; it alone decides what becomes of the message.
type class string

const (
	permanent   class = "permanent"   // a dead letter now
	transient   class = "transient"   // again in the process for a while, then parked until it is due
	contention  class = "contention"  // again at once, no attempt counted, within a budget
	stopping    class = "stopping"    // handed back, no attempt counted
	unknown     class = "unknown"     // the commit may have happened: claim again
	unavailable class = "unavailable" // the store does not answer: wait for it
	busy        class = "busy"        // somebody else holds the key: wait, then park until its lease can be over
	behind      class = "behind"      // an older message of the ordering key is parked: park behind it
	lost        class = "lost"        // the parked row is another's by now: leave it to that one
)

// failure is a classified error.
type failure struct {
	class  class
	reason string // constant code for people and metrics
	err    error
	wait   time.Duration // before the next attempt; 0 leaves it to the backoff
}

const maxErrorText = 2 << 10

func (f failure) text() string {
	if f.err == nil {
		return ""
	}
	text := f.err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return text
}

// Errors of the engine itself.
var (
	errDeadline  = errors.New("the handler overran its timeout")
	errAbandoned = errors.New("it has not returned yet")
	errGoexit    = errors.New("the handler ended its goroutine")
	errResult    = errors.New("the handler's result has no JSON form")
	errMismatch  = errors.New("the key was used before with another payload")
	errCrashed   = errors.New("the process died repeatedly while this message was being handled")
	errBehind    = errors.New("an older message of the same ordering key is parked")
)

// storeError marks an error of the store or of a statement on the handler's transaction, as against one of the handler's own making.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// inStore marks and wraps an error of the store.
func inStore(err error, doing string) error {
	if err == nil {
		return nil
	}
	return &storeError{fmt.Errorf("%s: %w", doing, err)}
}

// busyError says that somebody else holds the key.
type busyError struct{ left time.Duration }

func (e *busyError) Error() string { return "another owner holds the key" }

// panicError is a handler's panic.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("the handler panicked: %v", e.value) }

// handlerError marks what a handler returned, or how it ended. Errors of a store in it are of a store of the handler's own.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// byHandler marks an error of the handler.
func byHandler(err error) error {
	if err == nil {
		return nil
	}
	return &handlerError{err}
}

// classify is the one place where errors get their class.
func (e *Engine) classify(err error) failure {
	var (
		inStore *storeError
		handler *handlerError
		lasting interface{ Permanent() string }
		held    *busyError
	)
	switch {
	case e.aborted.Err() != nil:
		return failure{class: stopping, reason: "stopping", err: err}
	case errors.As(err, &handler):
		return classifyHandler(handler.err)
	case errors.Is(err, errHandBack):
		return failure{class: stopping, reason: "stopping", err: err}
	case errors.Is(err, keystore.ErrOutcomeUnknown):
		return failure{class: unknown, reason: "commit-outcome-unknown", err: err}
	case errors.Is(err, keystore.ErrLeaseLost):
		return failure{class: contention, reason: "lease-lost", err: err}
	case errors.Is(err, parking.ErrLeaseLost):
		return failure{class: lost, reason: "parked-lease-lost", err: err}
	case errors.Is(err, keystore.ErrResultTooLarge):
		return failure{class: permanent, reason: "result-too-large", err: err}
	case errors.Is(err, errResult):
		return failure{class: permanent, reason: "result-not-json", err: err}
	case errors.As(err, &inStore) && e.keys.Classify(inStore.err) == keystore.FaultContention:
		return failure{class: contention, reason: "contention", err: err}
	case errors.As(err, &inStore) && e.keys.Classify(inStore.err) == keystore.FaultUnavailable:
		return failure{class: unavailable, reason: "store-unavailable", err: err}
	case errors.Is(err, errMismatch):
		return failure{class: permanent, reason: "payload-mismatch", err: err}
	case errors.Is(err, errCrashed):
		return failure{class: permanent, reason: "crashed", err: err}
	case errors.Is(err, errBehind):
		return failure{class: behind, reason: "behind-parked", err: err}
	case errors.As(err, &held):
		return failure{class: busy, reason: "in-progress", err: err, wait: held.left}
	case errors.As(err, &lasting):
		return failure{class: permanent, reason: lasting.Permanent(), err: err}
	}
	return failure{class: transient, reason: "engine-error", err: err}
}

// classifyHandler gives an error of a handler its class.
func classifyHandler(err error) failure {
	var (
		unknown interface{ OutcomeUnknown() }
		lasting interface{ Permanent() string }
		later   interface{ RetryAfter() time.Duration }
		panics  *panicError
	)
	switch {
	case errors.As(err, &unknown): // whatever else it says, it does not know it
		return failure{class: transient, reason: "outcome-unknown", err: err}
	case errors.As(err, &lasting):
		return failure{class: permanent, reason: cmp.Or(lasting.Permanent(), "permanent"), err: err}
	case errors.As(err, &panics):
		return failure{class: transient, reason: "panic", err: err}
	case errors.Is(err, errDeadline):
		return failure{class: transient, reason: "deadline", err: err}
	case errors.As(err, &later):
		return failure{class: transient, reason: "handler-error", err: err, wait: later.RetryAfter()}
	}
	return failure{class: transient, reason: "handler-error", err: err}
}

// settle decides what follows a failed attempt. It returns how long to wait before the next one, or done: the message
// is parked, buried or skipped and can be acked; or an error: it goes back to the broker.
func (e *Engine) settle(ctx, wait context.Context, j *job, p *patience, err error) (next time.Duration, done bool, back error) {
	f := e.classify(err)
	e.logFailure(ctx, j, f)
	switch f.class {
	case stopping:
		return 0, false, errHandBack
	case lost:
		return 0, false, err
	case permanent:
		return 0, true, e.bury(ctx, wait, j, f)
	case unknown:
		e.distrustHints()
		return p.short(), false, nil
	case unavailable:
		e.distrustHints()
		e.observe(Event{Kind: EventUnavailable, Scope: j.id.Scope, Key: j.id.Key})
		return p.outage(), false, nil
	case contention:
		e.observe(Event{Kind: EventContention, Scope: j.id.Scope, Key: j.id.Key})
		if p.contended() < e.binding.Retry.Contention {
			return p.short(), false, nil
		}
		return 0, true, e.park(ctx, wait, j, f, e.binding.Retry.First)
	case busy:
		if j.parked == nil && p.busy() < e.binding.Retry.InProcess {
			return min(max(f.wait, time.Millisecond), p.short()*4), false, nil
		}
		return 0, true, e.park(ctx, wait, j, f, max(f.wait, 0)+jitter(100*time.Millisecond))
	case behind:
		return 0, true, e.park(ctx, wait, j, f, 0)
	}
	return e.settleTransient(ctx, wait, j, p, f)
}

// settleTransient counts the failure, and chooses between another attempt here, parking, and giving up.
func (e *Engine) settleTransient(ctx, wait context.Context, j *job, p *patience, f failure) (time.Duration, bool, error) {
	delay := e.binding.Retry.backoff(j.attempts)
	if f.wait > 0 {
		delay = f.wait
	}
	quick, here := p.retry(e.binding.Retry.InProcess, f.wait)
	here = here && j.parked == nil
	if here {
		delay = quick
	}
	if err := e.insist(wait, "count the failure", func() (err error) {
		j.attempts, err = e.keys.Count(ctx, j.attemptID(), keystore.Failure{Class: string(f.class), Error: f.text(), RetryIn: delay})
		return err
	}); err != nil {
		return 0, false, err
	}
	if j.attempts >= e.binding.Retry.Attempts {
		if f.reason == "handler-error" {
			f.reason = "attempts-exhausted"
		}
		return 0, true, e.bury(ctx, wait, j, f)
	}
	if here {
		e.observe(Event{Kind: EventRetried, Scope: j.id.Scope, Key: j.id.Key, Reason: f.reason})
		return delay, false, nil
	}
	return 0, true, e.park(ctx, wait, j, f, delay)
}

// backoff is the wait of a parked message before its next attempt: it doubles from First to Max, with jitter.
func (r Retry) backoff(failures int) time.Duration {
	d := r.First
	for range failures {
		if d >= r.Max/2 {
			d = r.Max
			break
		}
		d *= 2
	}
	return d/2 + jitter(d/2)
}

// Longest is about how long a message can be on its way through all its attempts.
func (r Retry) Longest() time.Duration {
	r = Binding{Retry: r}.withDefaults().Retry
	total, d := time.Duration(0), r.First
	for range r.Attempts - 1 {
		total += d
		d = min(2*d, r.Max)
	}
	return total
}

func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// patience is what one message has left to be tried again in the process.
type patience struct {
	retries     int
	shorts      int
	outages     int
	firstFailed time.Time
	contendedAt time.Time
	busyAt      time.Time
}

// retry returns the wait before another attempt in the process, and whether the budget allows it.
func (p *patience) retry(budget, wish time.Duration) (time.Duration, bool) {
	if p.firstFailed.IsZero() {
		p.firstFailed = time.Now()
	}
	d := min(20*time.Millisecond<<p.retries, 400*time.Millisecond)
	d = max(d/2+jitter(d), wish)
	p.retries++
	return d, time.Since(p.firstFailed)+d <= budget
}

// short is a wait of some milliseconds that grows with each call.
func (p *patience) short() time.Duration {
	p.shorts++
	d := min(time.Millisecond<<min(p.shorts, 7), 100*time.Millisecond)
	return d/2 + jitter(d)
}

// outage is the wait before the store is tried again: it grows to about two seconds.
func (p *patience) outage() time.Duration {
	p.outages++
	d := min(50*time.Millisecond<<min(p.outages, 6), 2*time.Second)
	return d/2 + jitter(d/2)
}

func (p *patience) contended() time.Duration { return since(&p.contendedAt) }
func (p *patience) hasContended() bool       { return !p.contendedAt.IsZero() }
func (p *patience) busy() time.Duration      { return since(&p.busyAt) }

// since returns the time since the first call.
func since(at *time.Time) time.Duration {
	if at.IsZero() {
		*at = time.Now()
	}
	return time.Since(*at)
}
