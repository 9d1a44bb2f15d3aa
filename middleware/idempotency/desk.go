package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// insist repeats a step that must become durable before the message may leave the engine, until it succeeds or
// the engine stops: a store that cannot be written is unavailable, and nothing is acked meanwhile.
func (e *Engine) insist(wait context.Context, doing string, step func() error) error {
	var p patience
	for {
		err := step()
		if err == nil || errors.Is(err, parking.ErrLeaseLost) {
			return err // a row that is another's by now is that one's to settle
		}
		f := e.classify(inStore(err, doing))
		if f.class == stopping {
			return errHandBack
		}
		e.observe(Event{Kind: EventUnavailable, Scope: e.binding.Scope})
		e.log.WarnContext(wait, "store step failed, trying again", "scope", e.binding.Scope, "step", doing, "err", err)
		if !pause(wait, p.outage()) {
			return errHandBack
		}
	}
}

// pause waits for d and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// park writes the message to parking, or gives its row back there; it is due after the time due.
func (e *Engine) park(ctx, wait context.Context, j *job, f failure, due time.Duration) error {
	err := e.insist(wait, "park the message", func() error {
		if err := e.fault.At(ctx, faultpoint.BeforeParking); err != nil {
			return err
		}
		row := e.row(j, parking.Waiting, f)
		row.DueIn = due
		if j.parked == nil {
			return e.parking.Park(ctx, []parking.Row{row})
		}
		return e.parking.Postpone(ctx, j.parked.Lease, due, row)
	})
	if err != nil {
		return err
	}
	e.observe(Event{Kind: EventParked, Scope: j.id.Scope, Key: j.id.Key, Reason: f.reason})
	e.woken()
	return e.fault.At(ctx, faultpoint.Parked)
}

// bury writes the dead letter and the key as failed in one new transaction.
func (e *Engine) bury(ctx, wait context.Context, j *job, f failure) error {
	var kind EventKind
	err := e.insist(wait, "write the dead letter", func() (err error) {
		kind, err = e.buryOnce(ctx, j, f)
		return err
	})
	if err != nil {
		return err
	}
	e.observe(Event{Kind: kind, Scope: j.id.Scope, Key: j.id.Key, Reason: f.reason})
	e.woken()
	return e.fault.At(ctx, faultpoint.DeadLetterWritten)
}

// buryOnce tries to, and returns what became of the message: the key's state has the last word.
func (e *Engine) buryOnce(ctx context.Context, j *job, f failure) (EventKind, error) {
	if err := e.fault.At(ctx, faultpoint.BeforeDeadLetter); err != nil {
		return "", err
	}
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	row := e.row(j, parking.Dead, f)
	row.Holds = e.binding.Hold && row.OrderingKey != ""
	c := keystore.Completion{State: keystore.Failed, Park: &row, Settles: j.settles(), Retention: e.binding.Retention, Owner: e.owner}
	if j.id.Key == "" {
		c.Keep = true
		return EventDead, tx.Commit(ctx, []keystore.Completion{c})
	}
	c.Claim = j.claim()
	c.Claim.OrderingKey = "" // a dead letter stands in no queue
	verdicts, err := tx.Claim(ctx, []keystore.Claim{c.Claim})
	if err != nil {
		return "", err
	}
	kind, outcome := EventDead, verdicts[0].Outcome
	if outcome == keystore.Fresh && j.doubt {
		outcome = keystore.TakenOver // from itself
	}
	switch outcome {
	case keystore.Fresh:
		// What only differs from another message leaves the key to that one, also when it is free at the moment.
		c.Keep = errors.Is(f.err, errMismatch)
	case keystore.Lost:
		j.token = "" // the key is another's: look again what it makes of it
		return "", keystore.ErrLeaseLost
	case keystore.Duplicate, keystore.Rejected, keystore.Doubtful, keystore.Waits:
		// Somebody else has settled the key meanwhile, so this copy is not needed.
		c.Park, c.Keep, kind = nil, true, skipped(outcome)
	case keystore.TakenOver:
		// A call was made whose outcome nobody knows: that is no failure, a person decides.
		c.State, row.State, row.Reason, kind = keystore.InDoubt, parking.InDoubt, "outcome-unknown", EventInDoubt
	case keystore.Busy:
		// Another copy is under way and may yet succeed.
		row.State, row.Holds, row.DueIn = parking.Waiting, false, max(verdicts[0].Record.LeaseLeft, 0)+jitter(100*time.Millisecond)
		c.Keep, kind = true, EventParked
	default:
		c.Keep = true
	}
	return kind, tx.Commit(ctx, []keystore.Completion{c})
}

// row is the parked form of a job with the binding's topic.
func (e *Engine) row(j *job, state parking.State, f failure) parking.Row {
	row := j.row(state, f)
	if row.Topic == "" {
		row.Topic = e.binding.Topic
	}
	return row
}

func isLost(err error) bool {
	return errors.Is(err, parking.ErrLeaseLost) || errors.Is(err, keystore.ErrLeaseLost)
}
