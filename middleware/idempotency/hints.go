package idempotency

import (
	"context"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/elsewhere"
)

// reasonHint marks the event of a duplicate that cost no transaction.
const reasonHint = "hint"

// keepElsewhere sets the engine up for keys that are kept elsewhere, too.
func (e *Engine) keepElsewhere(far keystore.Elsewhere) {
	e.hints = elsewhere.NewHints(e.keys, far, e.log)
	if e.binding.External != nil {
		e.keys = elsewhere.New(e.keys, far, e.hints, elsewhere.Options{
			Lease: e.binding.Lease, Tx: keystore.TxOptions{LockTimeout: e.binding.LockTimeout}, Logger: e.log,
		})
	}
}

// recalled answers a message whose key is certainly completed, and notes the epoch under which the message's own completion may be
// noted. A row from parking goes the whole way, because it must be removed.
func (e *Engine) recalled(ctx context.Context, j *job) bool {
	if e.hints == nil || j.id.Key == "" {
		return false
	}
	j.epoch = e.hints.Open(ctx)
	if j.parked != nil {
		return false
	}
	r, known := e.hints.Recall(ctx, j.epoch, j.id, j.fingerprint)
	if !known {
		return false
	}
	if e.onDup != nil {
		e.onDup(ctx, j.msg, r)
	}
	e.observe(Event{Kind: EventDuplicate, Scope: j.id.Scope, Key: j.id.Key, Reason: reasonHint})
	return true
}

// note remembers elsewhere what has committed. The lease of an external handler is completed with its transaction.
func (e *Engine) note(ctx context.Context, c keystore.Completion) {
	if e.hints != nil && e.binding.External == nil && c.State == keystore.Completed && c.Claim.Key != "" && !c.Keep {
		e.hints.Note(ctx, c)
	}
}

// noteDuplicate remembers elsewhere what the database said of a copy.
func (e *Engine) noteDuplicate(ctx context.Context, j *job, r keystore.Record) {
	if e.hints != nil && e.binding.External == nil {
		e.hints.NoteRecord(ctx, j.claim(), r)
	}
}

// distrustHints makes the next hint ask for the database's epoch: it may be another server now.
func (e *Engine) distrustHints() {
	if e.hints != nil {
		e.hints.Distrust()
	}
}
