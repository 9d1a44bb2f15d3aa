package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// attemptTransactional claims the key, runs the handler in the claim's transaction and commits both.
func (e *Engine) attemptTransactional(ctx context.Context, j *job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := e.fault.At(ctx, faultpoint.BeforeClaim); err != nil {
		return err
	}
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{Isolation: e.binding.Isolation, LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return inStore(err, "begin a transaction")
	}
	defer tx.Rollback() // while ctx lives: a rollback by the end of its context costs the connection
	completion := keystore.Completion{
		Claim: j.claim(), State: keystore.Completed, Retention: e.binding.Retention, Owner: e.owner, Settles: j.settles(),
	}
	// A store that knows what is to come writes the key once.
	completion.Claim.Retention, completion.Claim.Owner = completion.Retention, completion.Owner
	if j.id.Key == "" {
		completion.Keep = true
		e.observe(Event{Kind: EventKeyless, Scope: j.id.Scope, Key: j.id.Key})
	} else {
		verdicts, err := tx.Claim(ctx, []keystore.Claim{completion.Claim})
		if err != nil {
			return inStore(err, "claim the key")
		}
		switch verdicts[0].Outcome {
		case keystore.Fresh:
		case keystore.TakenOver: // left by an external handler that had the scope before
			e.observe(Event{Kind: EventTakeover, Scope: j.id.Scope, Key: j.id.Key})
		default:
			return e.answer(ctx, j, verdicts[0], tx)
		}
	}
	if err := e.fault.At(ctx, faultpoint.AfterClaim); err != nil {
		return err
	}
	facade := newTx(ctx, cancel, tx.SQL(), j, e.fault)
	if err := e.runHandler(ctx, j, facade); err != nil {
		return err
	}
	return e.commit(ctx, j, tx, facade, completion)
}

// runHandler runs a transactional handler and takes care that its transaction is closed and its result is JSON.
func (e *Engine) runHandler(ctx context.Context, j *job, facade *Tx) error {
	return e.inTx(ctx, facade, func(ctx context.Context) error {
		result, err := (*e.handler.Load())(ctx, facade, j.copyFor(ctx))
		if err == nil && result != nil {
			facade.SetResult(result)
		}
		return err
	})
}

// inTx runs f over the façade, within the binding's timeout, and closes the façade. An error of a statement that f hides or
// disguises still decides how the failure is classified.
func (e *Engine) inTx(ctx context.Context, facade *Tx, f func(context.Context) error) error {
	err := e.guarded(ctx, func(ctx context.Context) error {
		if err := f(ctx); err != nil {
			return err
		}
		return facade.flush(ctx)
	})
	hidden := facade.close()
	if err != nil && ctx.Err() != nil { // not by the handler's fault
		return context.Cause(ctx)
	}
	switch {
	case errors.Is(err, errDeadline):
		if errors.Is(err, errAbandoned) {
			facade.cut()
		}
	case hidden != nil && e.keys.Classify(hidden) != keystore.FaultOther:
		return inStore(hidden, "a statement of the handler")
	case err != nil && e.keys.Capabilities().Writers != 1 && e.keys.Classify(err) == keystore.FaultContention:
		// Of a prepared statement or of rows, which are not seen here. A single writer meets no contention inside its transaction.
		return inStore(err, "a statement of the handler")
	}
	return byHandler(err)
}

// guarded calls f in a goroutine of its own, so that a panic, a Goexit or an overrun deadline is a failure of this message alone. A function that does
// not return at its deadline is abandoned (the error is errAbandoned, too); the caller closes what it could still use.
func (e *Engine) guarded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.binding.Timeout, errDeadline)
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		err := errGoexit
		defer func() {
			if value := recover(); value != nil {
				err = &panicError{value, debug.Stack()}
			}
			ended <- err
		}()
		err = f(ctx)
	}()
	select {
	case err := <-ended:
		return overrun(ctx, err)
	case <-ctx.Done():
	}
	// A handler that minds its context returns now.
	select {
	case err := <-ended:
		return overrun(ctx, err)
	case <-time.After(50 * time.Millisecond):
	}
	e.observe(Event{Kind: EventAbandoned, Scope: e.binding.Scope})
	go func() {
		err := <-ended
		e.observe(Event{Kind: EventAbandonedOK, Scope: e.binding.Scope})
		e.log.WarnContext(ctx, "an abandoned handler has returned", "scope", e.binding.Scope, "err", err)
	}()
	return fmt.Errorf("%w: %w", overrun(ctx, context.Cause(ctx)), errAbandoned)
}

// overrun makes a failure of everything that came after the deadline: a late success is not committed.
func overrun(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errDeadline) && ctx.Err() != nil {
		if panicked := (*panicError)(nil); errors.As(err, &panicked) {
			return err
		}
		return errDeadline
	}
	return err
}

// commit writes result, key and outgoing messages and commits them with the handler's rows.
func (e *Engine) commit(ctx context.Context, j *job, tx keystore.Tx, facade *Tx, c keystore.Completion) error {
	result, err := encodeResult(facade.result)
	if err != nil {
		return err
	}
	c.Result, c.Outbox, c.KeepOutputs = result, facade.outgoing, e.binding.Resend
	if err := e.fault.At(ctx, faultpoint.BeforeCommit); err != nil {
		return err
	}
	if err := tx.Commit(ctx, []keystore.Completion{c}); err != nil {
		return inStore(err, "commit")
	}
	e.observe(Event{Kind: EventCompleted, Scope: j.id.Scope, Key: j.id.Key, Duration: time.Since(j.started)})
	e.note(ctx, c)
	e.afterCommit(ctx, facade.after)
	if err := e.fault.At(ctx, faultpoint.Committed); err != nil {
		return fmt.Errorf("%w: %w", keystore.ErrOutcomeUnknown, err)
	}
	return nil
}

// afterCommit runs the hooks of a message that has committed: whatever they do, it is done.
func (e *Engine) afterCommit(ctx context.Context, hooks []func(context.Context)) {
	for _, hook := range hooks {
		err := e.guarded(ctx, func(ctx context.Context) error {
			hook(ctx)
			return nil
		})
		if err != nil {
			e.log.ErrorContext(ctx, "a hook after the commit failed", "scope", e.binding.Scope, "err", err)
		}
	}
}

func encodeResult(result any) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	data, ready := result.(json.RawMessage)
	if !ready {
		var err error
		if data, err = json.Marshal(result); err != nil {
			return nil, fmt.Errorf("%w: %w", errResult, err)
		}
	}
	if !json.Valid(data) || !utf8.Valid(data) {
		return nil, errResult
	}
	return data, nil
}

// answer deals with a message that must not run. tx, where there is one, is ended here; a parked row that is not needed any more is removed.
func (e *Engine) answer(ctx context.Context, j *job, v keystore.Verdict, tx keystore.Tx) error {
	switch v.Outcome {
	case keystore.Mismatch:
		return errMismatch
	case keystore.Behind:
		return errBehind
	case keystore.Busy:
		return &busyError{left: v.Record.LeaseLeft}
	case keystore.Lost:
		return keystore.ErrLeaseLost
	case keystore.Duplicate, keystore.Rejected, keystore.Doubtful, keystore.Waits:
	default:
		return fmt.Errorf("the store answered a claim with %q", v.Outcome)
	}
	event := Event{Kind: skipped(v.Outcome), Scope: j.id.Scope, Key: j.id.Key}
	resend := v.Outcome == keystore.Duplicate && e.binding.Resend
	if j.parked != nil || resend {
		resent, err := e.conclude(ctx, j, tx, resend)
		if err != nil {
			return err
		}
		if resent {
			event.Reason = reasonResent
		}
	}
	if v.Outcome == keystore.Duplicate {
		e.noteDuplicate(ctx, j, v.Record)
		if e.onDup != nil {
			e.onDup(ctx, j.msg, v.Record)
		}
	}
	e.observe(event)
	return nil
}

// reasonResent marks the event of a duplicate whose messages were published again.
const reasonResent = "resent"

// skipped names what becomes of a copy that is not needed.
func skipped(outcome keystore.Outcome) EventKind {
	switch outcome {
	case keystore.Rejected:
		return EventRejected
	case keystore.Waits, keystore.Doubtful:
		return EventWaiting
	}
	return EventDuplicate
}

// conclude removes the parked row, if there is one, of a message that turned out to be settled, and publishes again, where asked, what the key has kept.
func (e *Engine) conclude(ctx context.Context, j *job, tx keystore.Tx, resend bool) (resent bool, err error) {
	if tx == nil {
		if tx, err = e.keys.Begin(ctx, keystore.TxOptions{}); err != nil {
			return false, inStore(err, "begin a transaction")
		}
		defer tx.Rollback()
	}
	c := keystore.Completion{Claim: j.claim(), Keep: true, Settles: j.settles()}
	if resend {
		if c.Outbox, _, err = tx.Outputs(ctx, j.id); err != nil {
			return false, inStore(err, "read what is sent again")
		}
	}
	if len(c.Outbox) == 0 && c.Settles == nil {
		return false, nil
	}
	if err := tx.Commit(ctx, []keystore.Completion{c}); isLost(err) {
		return false, nil // whoever has the row now finds the key completed
	} else if err != nil {
		return false, inStore(err, "settle a message whose key is settled")
	}
	return len(c.Outbox) > 0, nil
}
