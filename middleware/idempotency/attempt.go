package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// attemptTransactional claims the key, runs the handler in the claim's transaction and commits both.
func (e *Engine) attemptTransactional(ctx context.Context, j *job) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // rolls an unfinished transaction back, also under a handler that does not return
	if err := e.fault.at(ctx, FaultBeforeClaim); err != nil {
		return err
	}
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{Isolation: e.binding.Isolation, LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return inStore(err, "begin a transaction")
	}
	defer func() {
		cancel()
		tx.Rollback()
	}()
	completion := keystore.Completion{
		Claim: j.claim(), State: keystore.Completed, Retention: e.binding.Retention, Owner: e.owner, Settles: j.settles(),
	}
	if j.id.Key == "" {
		completion.Keep = true
		e.observe(Event{Kind: EventKeyless, Scope: j.id.Scope})
	} else {
		verdicts, err := tx.Claim(ctx, []keystore.Claim{completion.Claim})
		if err != nil {
			return inStore(err, "claim the key")
		}
		if verdicts[0].Outcome != keystore.Fresh {
			return e.answer(ctx, j, verdicts[0], tx)
		}
	}
	if err := e.fault.at(ctx, FaultAfterClaim); err != nil {
		return err
	}
	facade := &Tx{inner: tx.SQL(), fault: e.fault, job: j}
	if err := e.runHandler(ctx, j, facade); err != nil {
		return err
	}
	return e.commit(ctx, j, tx, facade, completion)
}

// runHandler runs a transactional handler and takes care that its transaction is closed and its result is JSON.
func (e *Engine) runHandler(ctx context.Context, j *job, facade *Tx) error {
	return e.inTx(ctx, facade, func(ctx context.Context) error {
		result, err := e.binding.Handler(ctx, facade, j.copyFor(ctx))
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
	if errors.Is(err, errDeadline) {
		return err
	}
	if hidden != nil && e.keys.Classify(hidden) != keystore.FaultOther {
		return inStore(hidden, "a statement of the handler")
	}
	return err
}

// guarded calls f in a goroutine of its own, so that a panic, a Goexit or an overrun deadline is a failure of this message alone. A function that does
// not return at its deadline is abandoned; the caller closes what it could still use.
func (e *Engine) guarded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.binding.Timeout, errDeadline)
	ended := make(chan error, 1)
	e.running.Add(1)
	go func() {
		defer e.running.Done()
		defer cancel()
		err := errGoexit
		defer func() {
			if value := recover(); value != nil {
				err = &panicError{value}
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
	e.running.Add(1)
	go func() {
		defer e.running.Done()
		<-ended
		e.observe(Event{Kind: EventAbandonedOK, Scope: e.binding.Scope})
	}()
	return overrun(ctx, context.Cause(ctx))
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
	c.Result, c.Outbox = result, facade.outgoing
	if err := e.fault.at(ctx, FaultBeforeCommit); err != nil {
		return err
	}
	if err := tx.Commit(ctx, []keystore.Completion{c}); err != nil {
		return inStore(err, "commit")
	}
	e.observe(Event{Kind: EventCompleted, Scope: j.id.Scope, Duration: time.Since(j.started)})
	for _, f := range facade.after {
		f(ctx)
	}
	if err := e.fault.at(ctx, FaultCommitted); err != nil {
		return fmt.Errorf("%w: %w", keystore.ErrOutcomeUnknown, err)
	}
	return nil
}

func encodeResult(result any) (json.RawMessage, error) {
	switch r := result.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return r, nil
	}
	data, err := json.Marshal(result)
	if err != nil {
		return nil, fmt.Errorf("result as JSON: %w", err)
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
	}
	if j.parked != nil {
		if err := e.removeRow(ctx, j, tx); err != nil {
			return err
		}
	}
	kind := EventDuplicate
	switch v.Outcome {
	case keystore.Rejected:
		kind = EventRejected
	case keystore.Waits, keystore.Doubtful:
		kind = EventWaiting
	case keystore.Duplicate:
		if e.onDup != nil {
			e.onDup(ctx, j.msg, v.Record)
		}
	}
	e.observe(Event{Kind: kind, Scope: j.id.Scope})
	return nil
}

// removeRow removes the parked row of a message that turned out to be settled.
func (e *Engine) removeRow(ctx context.Context, j *job, tx keystore.Tx) error {
	if tx == nil {
		var err error
		if tx, err = e.keys.Begin(ctx, keystore.TxOptions{}); err != nil {
			return inStore(err, "begin a transaction")
		}
		defer tx.Rollback()
	}
	err := tx.Commit(ctx, []keystore.Completion{{Claim: j.claim(), Keep: true, Settles: j.settles()}})
	if err != nil && !isLost(err) {
		return inStore(err, "remove a settled row")
	}
	return nil
}
