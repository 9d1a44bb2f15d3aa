package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/transact"
)

const (
	// dueRows is how many due rows one batch takes.
	dueRows = 8
	// listEvery is how often the ordering keys of parked rows are read again while there are any.
	listEvery = 2 * time.Second
	listPage  = 200
	// forgetTimeout bounds the removal of a row whose run is committed: what is not removed now is later.
	forgetTimeout = 5 * time.Second
)

// row is the parked form of a message, in the shard's scope.
func (w *flowShard) row(j *job, state parking.State, f failure) parking.Row {
	row := w.e.row(j, state, f)
	row.Scope = w.scope
	return row
}

// park makes the message's copy in the database durable, or gives its row back there.
func (w *flowShard) park(j *job, f failure, due time.Duration) error {
	row := w.row(j, parking.Waiting, f)
	row.DueIn = due
	err := w.e.insist(w.wait, "park the message", func() error {
		if err := w.e.fault.At(w.ctx, faultpoint.BeforeParking); err != nil {
			return err
		}
		if j.parked == nil {
			return w.e.parking.Park(w.ctx, []parking.Row{row})
		}
		return w.e.parking.Postpone(w.ctx, j.parked.Lease, due, row)
	})
	if err != nil && !errors.Is(err, parking.ErrLeaseLost) {
		return err
	}
	if row.OrderingKey != "" {
		w.blocked[row.OrderingKey] = true
	}
	w.lookBy(due)
	w.e.observe(Event{Kind: EventParked, Scope: w.e.binding.Scope, Reason: f.reason})
	return w.e.fault.At(w.ctx, faultpoint.Parked)
}

// bury makes the dead letter durable and lets the batch say that the key has failed.
func (w *flowShard) bury(b *flowBatch, j *job, f failure) error {
	if err := w.writeDead(j, f); err != nil {
		return err
	}
	// What only differs from another message leaves the key to that one.
	b.add(&flowItem{job: j, state: transact.Failed, keep: errors.Is(f.err, errMismatch)})
	return nil
}

func (w *flowShard) writeDead(j *job, f failure) error {
	row := w.row(j, parking.Dead, f)
	err := w.e.insist(w.wait, "write the dead letter", func() error {
		if err := w.e.fault.At(w.ctx, faultpoint.BeforeDeadLetter); err != nil {
			return err
		}
		if j.parked == nil {
			return w.e.parking.Park(w.ctx, []parking.Row{row})
		}
		return w.settleRow(w.ctx, j, &row)
	})
	if err != nil && !errors.Is(err, parking.ErrLeaseLost) {
		return err
	}
	w.e.observe(Event{Kind: EventDead, Scope: w.e.binding.Scope, Reason: f.reason})
	return w.e.fault.At(w.ctx, faultpoint.DeadLetterWritten)
}

// settleRow removes the row that a message came from, or puts another in its place.
func (w *flowShard) settleRow(ctx context.Context, j *job, instead *parking.Row) error {
	tx, err := w.e.keys.Begin(ctx, keystore.TxOptions{})
	if err != nil {
		return inStore(err, "begin a transaction")
	}
	defer tx.Rollback()
	return tx.Commit(ctx, []keystore.Completion{{Keep: true, Park: instead, Settles: j.settles()}})
}

// forget removes the row of a message whose outcome is committed. What cannot be removed now is run again, and is known then.
func (w *flowShard) forget(j *job) {
	if j.parked == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, forgetTimeout)
	defer cancel()
	if err := w.settleRow(ctx, j, nil); err != nil && !isLost(err) {
		w.e.log.WarnContext(ctx, "a parked row whose run is committed could not be removed; it is removed when it is due again",
			"scope", w.scope, "message_uuid", j.msg.UUID, "err", err)
	}
	w.listed = time.Time{}
	w.lookBy(0)
}

// takeDue runs rows that are due.
func (w *flowShard) takeDue(b *flowBatch) error {
	if time.Now().Before(w.nextLook) || w.wait.Err() != nil {
		return nil
	}
	w.nextLook = time.Now().Add(w.f.poll)
	rows, err := w.e.parking.LeaseDue(w.ctx, []string{w.scope}, dueRows, w.rowLease())
	if err == nil && len(w.blocked) > 0 && time.Since(w.listed) > listEvery {
		err = w.listBlocked()
	}
	if err != nil {
		w.rowsFailed++
		w.nextLook = time.Now().Add(min(w.f.poll<<min(w.rowsFailed, 4), 10*time.Second))
		w.e.log.WarnContext(w.ctx, "parked rows cannot be read, trying again", "scope", w.scope, "err", err)
	} else {
		w.rowsFailed = 0
	}
	b.rows = rows
	for _, row := range rows {
		j, violation := w.e.openParked(row)
		if err := w.handle(b, j, violation); err != nil {
			return err
		}
	}
	if len(rows) == dueRows {
		w.lookBy(0)
	}
	return nil
}

// giveBack returns rows whose batch did not commit to whoever owns the shard next; those that are settled already are gone.
func (w *flowShard) giveBack(rows []parking.Leased) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), forgetTimeout)
	defer cancel()
	for _, row := range rows {
		if err := w.e.parking.Release(ctx, row.Lease); err != nil {
			w.e.log.WarnContext(ctx, "a parked row cannot be given back; it is due again when its lease is over", "scope", w.scope, "err", err)
			return
		}
	}
}

// rowLease covers the runs of a few rows. Only this owner runs them, so that it ends early costs a second look; that it ends late makes
// the rows of an owner that died wait.
func (w *flowShard) rowLease() time.Duration { return w.e.binding.Timeout + 30*time.Second }

// lookBy has rows looked for after d at the latest.
func (w *flowShard) lookBy(d time.Duration) {
	if at := time.Now().Add(d); at.Before(w.nextLook) {
		w.nextLook = at
	}
}

func (w *flowShard) untilLook() time.Duration {
	return max(time.Until(w.nextLook), time.Millisecond)
}

// loadBlocked reads the ordering keys of rows that earlier owners parked; before that no message may pass them.
func (w *flowShard) loadBlocked() error {
	return w.e.insist(w.wait, "read the parked messages", w.listBlocked)
}

func (w *flowShard) listBlocked() error {
	blocked := map[string]bool{}
	filter := parking.Filter{States: []parking.State{parking.Waiting}, Scope: w.scope, Limit: listPage}
	for {
		rows, err := w.e.parking.List(w.ctx, filter)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.OrderingKey != "" {
				blocked[row.OrderingKey] = true
			}
		}
		if len(rows) < listPage {
			break
		}
		filter.AfterID = rows[len(rows)-1].ID
	}
	w.blocked, w.listed = blocked, time.Now()
	return nil
}
