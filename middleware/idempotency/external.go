package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// attemptExternal acquires the key's lease, calls, and records. While the call runs the lease is renewed; a lost lease ends the call's context.
func (e *Engine) attemptExternal(ctx, wait context.Context, j *job) error {
	if j.id.Key == "" {
		return &envelope.Violation{Rule: envelope.RuleKeyMissing, Detail: "an external handler needs an idempotency key"}
	}
	if err := e.fault.At(ctx, faultpoint.BeforeClaim); err != nil {
		return err
	}
	v, err := e.acquire(ctx, j)
	if err != nil {
		return err
	}
	if v.Outcome != keystore.Fresh && v.Outcome != keystore.TakenOver {
		return e.answer(ctx, j, v, nil)
	}
	vanished := v.Outcome == keystore.Fresh && j.doubt // the store has lost the key of a call that this process knows of
	j.token, j.doubt = v.Token, false
	held, release := e.hold(ctx, j)
	defer release()
	switch {
	case vanished && j.outcome != nil:
		return e.record(held, wait, j, *j.outcome)
	case vanished:
		v.Outcome, v.Record.FirstAt, v.Record.Takeovers = keystore.TakenOver, j.calledAt, 1
	}
	if v.Outcome == keystore.TakenOver {
		e.observe(Event{Kind: EventTakeover, Scope: j.id.Scope, Key: j.id.Key})
		return e.takeOver(held, wait, j, v.Record)
	}
	return e.call(held, wait, j)
}

// acquire asks for the lease, after a lost answer under the same name as before: the lease may be this message's already.
func (e *Engine) acquire(ctx context.Context, j *job) (keystore.Verdict, error) {
	j.token = ""
	if j.asking == "" {
		j.asking = e.owner + "/" + envelope.NewUUID()
	}
	verdicts, err := e.keys.Acquire(ctx, j.asking, []keystore.Claim{j.claim()}, e.binding.Lease)
	if err == nil {
		err = e.fault.At(ctx, faultpoint.LeaseAcquired)
	}
	if err != nil {
		return keystore.Verdict{}, inStore(err, "acquire the key")
	}
	j.asking = ""
	return verdicts[0], nil
}

// hold renews the lease until release is called. The context that it returns ends with the lease.
func (e *Engine) hold(ctx context.Context, j *job) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(held, e.binding.Lease/3) {
			if err := e.renew(held, j); errors.Is(err, keystore.ErrLeaseLost) {
				e.observe(Event{Kind: EventLeaseLost, Scope: j.id.Scope, Key: j.id.Key})
				e.log.WarnContext(ctx, "lease lost to another owner", "scope", j.id.Scope, "message_uuid", j.msg.UUID)
				cancel(keystore.ErrLeaseLost)
			}
		}
	}()
	return held, func() { cancel(nil); <-done }
}

// renew prolongs the lease. A store that does not answer is asked again at the next turn: only its own word says that the lease is lost.
func (e *Engine) renew(ctx context.Context, j *job) error {
	if err := e.fault.At(ctx, faultpoint.BeforeRenewal); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.binding.Lease/3)
	defer cancel()
	return e.keys.Renew(ctx, j.id, j.token, e.binding.Lease)
}

// takeOver decides about a key whose earlier owner ended without a word.
func (e *Engine) takeOver(ctx, wait context.Context, j *job, r keystore.Record) error {
	if died, err := e.diedOften(ctx, j, r); err != nil {
		return err
	} else if died {
		return e.doubt(ctx, wait, j, "crashed", errCrashed, nil)
	}
	ext := e.binding.External
	switch {
	case ext.Unknown == UnknownRetry && (ext.Window == 0 || time.Since(r.FirstAt) < ext.Window):
		j.doubt = true
		return e.call(ctx, wait, j)
	case ext.Unknown == UnknownRetry:
		return e.doubt(ctx, wait, j, "retry-window-over", errors.New("the provider's window for repeating the call is over"), nil)
	case ext.Unknown == UnknownProbe:
		return e.probe(ctx, wait, j)
	}
	return e.doubt(ctx, wait, j, "outcome-unknown", errors.New("the process that called ended before it recorded the outcome"), nil)
}

// diedOften reports that more takeovers than the crash limit are left when those are taken off that
// followed a counted failure: after a call of unknown outcome this process itself leaves its key to be taken over.
func (e *Engine) diedOften(ctx context.Context, j *job, r keystore.Record) (bool, error) {
	if r.Takeovers <= e.binding.CrashLimit {
		return false, nil
	}
	a, err := e.keys.Attempt(ctx, j.attemptID())
	if err != nil {
		return false, inStore(err, "read the failures of a key")
	}
	return r.Takeovers-a.Failures > e.binding.CrashLimit, nil
}

// probe asks the provider for the outcome of an earlier call.
func (e *Engine) probe(ctx, wait context.Context, j *job) error {
	var result any
	var known bool
	err := e.guarded(ctx, func(ctx context.Context) (err error) {
		result, known, err = e.binding.External.Probe(ctx, j.copyFor(ctx), j.id.Scope, j.id.Key)
		return err
	})
	switch {
	case err != nil && errors.Is(context.Cause(ctx), keystore.ErrLeaseLost):
		j.doubt = true
		return keystore.ErrLeaseLost
	case err != nil:
		e.expire(ctx, j) // the doubt stays: the next attempt is a takeover again
		return byHandler(fmt.Errorf("probe: %w", err))
	case !known:
		return e.call(ctx, wait, j)
	}
	return e.record(ctx, wait, j, result)
}

// call has the outside effect, then records it.
func (e *Engine) call(ctx, wait context.Context, j *job) error {
	var result any
	if j.calledAt.IsZero() {
		j.calledAt = time.Now()
	}
	err := e.guarded(ctx, func(ctx context.Context) (err error) {
		if result, err = e.binding.External.Call(ctx, j.copyFor(ctx), j.id.Scope, j.id.Key); err != nil {
			return err
		}
		return e.fault.At(ctx, faultpoint.Answering)
	})
	if err == nil {
		if err := e.fault.At(ctx, faultpoint.Called); err != nil {
			return err
		}
		return e.record(ctx, wait, j, result)
	}
	if errors.Is(context.Cause(ctx), keystore.ErrLeaseLost) {
		j.doubt = true
		return keystore.ErrLeaseLost
	}
	return e.settleCall(ctx, wait, j, byHandler(err))
}

// settleCall gives the key the state that a failed call leaves.
func (e *Engine) settleCall(ctx, wait context.Context, j *job, err error) error {
	var (
		unknown interface{ OutcomeUnknown() }
		lasting interface{ Permanent() string }
		panics  *panicError
	)
	switch {
	case errors.As(err, &unknown), errors.Is(err, errDeadline), errors.As(err, &panics), errors.Is(err, errGoexit), e.aborted.Err() != nil:
		// A call that was cut off may have had its effect.
		if e.binding.External.Unknown == UnknownPark || e.binding.External.Unknown == "" {
			return e.doubt(ctx, wait, j, "outcome-unknown", err, nil)
		}
		e.expire(ctx, j)
		return err
	case errors.As(err, &lasting):
		j.doubt = false // the provider's word on this key
		return err      // settle buries it under the lease's token
	case j.doubt:
		e.expire(ctx, j) // nothing happened now, but an earlier call's outcome is still not known
		return err
	}
	ctx, cancel := outliving(ctx)
	defer cancel()
	if err := e.keys.Release(ctx, j.id, j.token); err != nil {
		return inStore(err, "release the key")
	}
	j.token = ""
	return err
}

// expire ends the lease now and leaves the key in progress, so that whoever comes next takes it over and knows of the doubt.
// The token stays good until then.
func (e *Engine) expire(ctx context.Context, j *job) {
	j.doubt = true
	ctx, cancel := outliving(ctx)
	defer cancel()
	if err := e.keys.Renew(ctx, j.id, j.token, time.Millisecond); err != nil {
		e.log.WarnContext(ctx, "lease could not be ended early", "scope", j.id.Scope, "err", err)
	}
}

// record completes the key with the result, in the transaction of Record's rows. The effect has
// happened, so the result is held for as long as the lease can be held and the retries last; then the message is in doubt, or waits to be
// called again where the provider deduplicates.
func (e *Engine) record(ctx, wait context.Context, j *job, result any) error {
	data, err := encodeResult(result)
	if err == nil && len(data) > keystore.MaxResult {
		err = keystore.ErrResultTooLarge
	}
	if err != nil {
		return e.doubt(ctx, wait, j, "record-failed", err, nil)
	}
	var p patience
	for {
		err := e.recordOnce(ctx, j, data)
		if err == nil {
			return nil
		}
		if errors.Is(err, keystore.ErrLeaseLost) || errors.Is(context.Cause(ctx), keystore.ErrLeaseLost) {
			j.doubt, j.outcome = true, &data // recorded after all if nobody else has the key
			return keystore.ErrLeaseLost
		}
		if errors.Is(err, parking.ErrLeaseLost) {
			j.parked = nil // whoever has the row finds the key completed
			continue
		}
		f := e.classify(err)
		e.logFailure(ctx, j, f)
		switch f.class {
		case unavailable, unknown, contention:
			if pause(ctx, p.outage()) {
				continue
			}
			return err
		}
		again, within := p.retry(e.binding.Retry.InProcess, f.wait)
		switch {
		case f.class != permanent && within && pause(ctx, again):
		case f.class != permanent && e.binding.External.Unknown == UnknownRetry:
			e.expire(ctx, j) // the next attempt calls again, while the provider's window lasts
			return err
		default:
			return e.doubt(ctx, wait, j, "record-failed", err, data)
		}
	}
}

func (e *Engine) recordOnce(ctx context.Context, j *job, result json.RawMessage) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{Isolation: e.binding.Isolation, LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return inStore(err, "begin a transaction")
	}
	defer tx.Rollback() // while ctx lives, as in attemptTransactional
	verdicts, err := tx.Claim(ctx, []keystore.Claim{j.claim()})
	if err != nil {
		return inStore(err, "claim the key under its lease")
	}
	switch verdicts[0].Outcome {
	case keystore.Fresh:
	case keystore.Duplicate:
		return nil // an earlier commit whose answer was lost
	default:
		return keystore.ErrLeaseLost
	}
	facade := newTx(ctx, cancel, tx.SQL(), j, e.fault)
	if e.binding.External.Record != nil {
		err := e.inTx(ctx, facade, func(ctx context.Context) error {
			return e.binding.External.Record(ctx, facade, j.copyFor(ctx), result)
		})
		if err != nil {
			return err
		}
	}
	if result != nil { // a nil in an interface would be a result that is no JSON
		facade.result = result
	}
	return e.commit(ctx, j, tx, facade, keystore.Completion{
		Claim: j.claim(), State: keystore.Completed, Retention: e.binding.Retention, Owner: e.owner, Settles: j.settles(),
	})
}

// doubt parks the message for a person's decision and marks its key in doubt, in one transaction.
func (e *Engine) doubt(ctx, wait context.Context, j *job, reason string, cause error, result json.RawMessage) error {
	f := failure{class: permanent, reason: reason, err: cause}
	e.logFailure(ctx, j, f)
	var lost error
	err := e.insist(wait, "mark the message in doubt", func() error {
		err := e.doubtOnce(ctx, j, f, result)
		if errors.Is(err, parking.ErrLeaseLost) {
			j.parked = nil // the row becomes the doubtful one, whoever has it
			err = e.doubtOnce(ctx, j, f, result)
		}
		if errors.Is(err, keystore.ErrLeaseLost) {
			lost, err = err, nil
		}
		return err
	})
	if err := cmp.Or(err, lost); err != nil {
		return err
	}
	e.observe(Event{Kind: EventInDoubt, Scope: j.id.Scope, Key: j.id.Key, Reason: reason})
	return nil
}

func (e *Engine) doubtOnce(ctx context.Context, j *job, f failure, result json.RawMessage) error {
	ctx, cancel := outliving(ctx)
	defer cancel()
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	verdicts, err := tx.Claim(ctx, []keystore.Claim{j.claim()})
	if err != nil {
		return err
	}
	if verdicts[0].Outcome != keystore.Fresh {
		return keystore.ErrLeaseLost
	}
	row := e.row(j, parking.InDoubt, f)
	row.Holds = e.binding.Hold && row.OrderingKey != ""
	return tx.Commit(ctx, []keystore.Completion{{
		Claim: j.claim(), State: keystore.InDoubt, Result: result, Park: &row, Settles: j.settles(), Owner: e.owner,
	}})
}

// outliving is ctx without its end, for a short step that is tried also while everything else is being cut off.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}
