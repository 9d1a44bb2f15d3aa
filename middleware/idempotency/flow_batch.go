package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/transact"
)

// flowBatch is what commits at once.
type flowBatch struct {
	began time.Time
	taken bool // a message was taken from the shard
	items []*flowItem
	rows  []parking.Leased          // that were leased for it
	keys  map[string]transact.Entry // of this batch
	tried time.Duration             // spent on retries
}

// flowItem is one message of a batch that leaves something behind.
type flowItem struct {
	job     *job
	outputs []outbox.Record
	state   transact.State
	keep    bool // its key, if it has one, is left as it is
}

func (b *flowBatch) empty() bool { return !b.taken && len(b.items) == 0 }

func (b *flowBatch) add(i *flowItem) {
	b.items = append(b.items, i)
	if !i.keep && i.job.id.Key != "" {
		b.keys[i.job.id.Key] = transact.Entry{State: i.state, Fingerprint: i.job.fingerprint}
	}
}

// handle takes one message to its outcome, in the batch or in the database.
func (w *flowShard) handle(b *flowBatch, j *job, violation error) error {
	if violation != nil {
		f := w.e.classify(violation)
		w.e.logFailure(w.ctx, j, f)
		return w.bury(b, j, f)
	}
	if known, found := w.lookup(b, j); found {
		return w.answer(b, j, known)
	}
	if j.id.Key == "" {
		w.e.observe(Event{Kind: EventKeyless, Scope: w.e.binding.Scope})
	}
	if j.parked == nil && j.orderingKey != "" && w.blocked[j.orderingKey] {
		return w.park(j, failure{class: behind, reason: "behind-parked", err: errBehind}, 0)
	}
	return w.drive(b, j)
}

func (w *flowShard) lookup(b *flowBatch, j *job) (transact.Entry, bool) {
	if j.id.Key == "" {
		return transact.Entry{}, false
	}
	if known, found := b.keys[j.id.Key]; found {
		return known, true
	}
	return w.shard.Lookup(j.id.Key)
}

// answer deals with a message whose key is known.
func (w *flowShard) answer(b *flowBatch, j *job, known transact.Entry) error {
	if !envelope.SameFingerprint(known.Fingerprint, j.fingerprint) {
		f := w.e.classify(errMismatch)
		w.e.logFailure(w.ctx, j, f)
		return w.bury(b, j, f)
	}
	if known.State == transact.Failed && j.parked != nil && j.parked.Redriven {
		return w.drive(b, j) // a person sent it back
	}
	kind := EventDuplicate
	if known.State == transact.Failed {
		kind = EventRejected
	}
	w.e.observe(Event{Kind: kind, Scope: w.e.binding.Scope})
	w.forget(j)
	return nil
}

// drive attempts a message until it has its outcome.
func (w *flowShard) drive(b *flowBatch, j *job) error {
	var p patience
	for {
		outputs, err := w.attempt(j)
		if err == nil {
			b.add(&flowItem{job: j, outputs: outputs, state: transact.Completed})
			return nil
		}
		if w.ctx.Err() != nil {
			return err
		}
		f := w.e.classify(err)
		w.e.logFailure(w.ctx, j, f)
		switch f.class {
		case stopping:
			return errHandBack
		case unavailable, contention, unknown: // of the database, which counts suspects
			w.e.observe(Event{Kind: EventUnavailable, Scope: w.e.binding.Scope})
			if !pause(w.wait, p.outage()) {
				return errHandBack
			}
			continue
		}
		if f.class == permanent {
			return w.bury(b, j, f)
		}
		again, err := w.failed(b, j, &p, f)
		if err != nil || !again {
			return err
		}
	}
}

// failed deals with a failure that may pass: another attempt here, for as long as the batch has time for that, else parking, or the end of all attempts.
func (w *flowShard) failed(b *flowBatch, j *job, p *patience, f failure) (again bool, err error) {
	j.attempts++
	if j.attempts >= w.e.binding.Retry.Attempts {
		if f.reason == "handler-error" {
			f.reason = "attempts-exhausted"
		}
		return false, w.bury(b, j, f)
	}
	delay, here := p.retry(w.e.binding.Retry.InProcess-b.tried, f.wait)
	if here && j.parked == nil {
		b.tried += delay
		if pause(w.wait, delay) {
			w.e.observe(Event{Kind: EventRetried, Scope: w.e.binding.Scope, Reason: f.reason})
			return true, nil
		}
	}
	due := w.e.binding.Retry.backoff(j.attempts - 1)
	if f.wait > 0 {
		due = f.wait
	}
	return false, w.park(j, f, due)
}

// attempt runs the transform once.
func (w *flowShard) attempt(j *job) ([]outbox.Record, error) {
	if !take(w.ctx, w.e.slots) {
		return nil, errHandBack
	}
	defer func() { <-w.e.slots }()
	suspect := j.suspect
	leave, err := w.e.gate.Enter(w.ctx, suspect)
	if err != nil {
		return nil, errHandBack
	}
	defer leave()
	if suspect {
		absolve, err := w.e.accuse(w.ctx, j)
		defer absolve()
		if err != nil {
			return nil, err
		}
	}
	out := &Outputs{job: j, check: w.shard.Check}
	err = w.e.guarded(w.ctx, func(ctx context.Context) (err error) {
		msg := j.copyFor(ctx)
		ctx, end := w.f.trace(ctx, msg)
		defer func() { end(err) }()
		msg.SetContext(ctx)
		return w.f.transform(ctx, out, msg)
	})
	outputs := out.close()
	if err != nil {
		return nil, byHandler(err)
	}
	return outputs, nil
}

// commit commits the batch, and then removes the rows that it settles. An output that the broker refuses costs its message only.
func (w *flowShard) commit(b *flowBatch) error {
	for {
		batch, owners := b.assemble()
		err := w.e.fault.At(w.ctx, faultpoint.BeforeCommit)
		if err == nil {
			err = w.shard.Commit(w.ctx, batch)
		}
		refused := (*transact.Refused)(nil)
		if !errors.As(err, &refused) {
			if err != nil {
				return err
			}
			break
		}
		item := owners[refused.Output]
		if err := w.refused(b, item, refused.Err); err != nil {
			return err
		}
	}
	if err := w.e.fault.At(w.ctx, faultpoint.Committed); err != nil {
		return err
	}
	for _, i := range b.items {
		if i.state == transact.Completed {
			w.e.observe(Event{Kind: EventCompleted, Scope: w.e.binding.Scope, Duration: time.Since(i.job.started)})
			w.forget(i.job)
		}
	}
	return nil
}

// assemble returns the broker's batch, and of each output whose it is.
func (b *flowBatch) assemble() (transact.Batch, []*flowItem) {
	var batch transact.Batch
	var owners []*flowItem
	for _, i := range b.items {
		for _, record := range i.outputs {
			batch.Outputs = append(batch.Outputs, transact.Output{Topic: record.Topic, Message: record.Message()})
			owners = append(owners, i)
		}
		if !i.keep && i.job.id.Key != "" {
			batch.Keys = append(batch.Keys, transact.Key{Key: i.job.id.Key, Entry: transact.Entry{State: i.state, Fingerprint: i.job.fingerprint}})
		}
	}
	return batch, owners
}

// refused makes a dead letter of an item whose output cannot be published.
func (w *flowShard) refused(b *flowBatch, item *flowItem, why error) error {
	f := failure{class: permanent, reason: "unpublishable", err: why}
	w.e.logFailure(w.ctx, item.job, f)
	item.outputs, item.state = nil, transact.Failed
	return w.writeDead(item.job, f)
}
