package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// insist repeats a step that must become durable before the message may leave the engine, until it succeeds or
// the engine stops: a store that cannot be written is unavailable, and nothing is acked meanwhile.
func (e *Engine) insist(wait context.Context, doing string, step func() error) error {
	var p patience
	for {
		err := step()
		if err == nil {
			return nil
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
		if err := e.fault.at(ctx, FaultBeforeParking); err != nil {
			return err
		}
		row := e.row(j, parking.Waiting, f)
		row.DueIn = due
		if j.parked == nil {
			return e.parking.Park(ctx, []parking.Row{row})
		}
		if err := e.parking.Postpone(ctx, j.parked.Lease, due, row); err != nil && !isLost(err) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.observe(Event{Kind: EventParked, Scope: j.id.Scope, Reason: f.reason})
	e.woken()
	return e.fault.at(ctx, FaultParked)
}

// bury writes the dead letter and the key as failed in one new transaction.
func (e *Engine) bury(ctx, wait context.Context, j *job, f failure) error {
	err := e.insist(wait, "write the dead letter", func() error { return e.buryOnce(ctx, j, f) })
	if err != nil {
		return err
	}
	e.observe(Event{Kind: EventDead, Scope: j.id.Scope, Reason: f.reason})
	e.woken()
	return e.fault.at(ctx, FaultBuried)
}

func (e *Engine) buryOnce(ctx context.Context, j *job, f failure) error {
	if err := e.fault.at(ctx, FaultBeforeBurial); err != nil {
		return err
	}
	tx, err := e.keys.Begin(ctx, keystore.TxOptions{LockTimeout: e.binding.LockTimeout})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	row := e.row(j, parking.Dead, f)
	row.Holds = e.binding.Hold && row.OrderingKey != ""
	c := keystore.Completion{State: keystore.Failed, Park: &row, Settles: j.settles(), Retention: e.binding.Retention, Owner: e.owner}
	if j.id.Key == "" {
		c.Keep = true
		return tx.Commit(ctx, []keystore.Completion{c})
	}
	c.Claim = j.claim()
	c.Claim.OrderingKey = "" // a dead letter stands in no queue
	verdicts, err := tx.Claim(ctx, []keystore.Claim{c.Claim})
	if err != nil {
		return err
	}
	switch verdicts[0].Outcome {
	case keystore.Fresh:
	case keystore.Lost:
		return nil // whoever took the key over settles it
	case keystore.Duplicate, keystore.Rejected, keystore.Doubtful, keystore.Waits:
		// Somebody else has settled the key meanwhile, so this copy is not needed.
		c.Park, c.Keep = nil, true
	default:
		c.Keep = true
	}
	return tx.Commit(ctx, []keystore.Completion{c})
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
