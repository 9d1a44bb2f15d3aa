package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/parking"
)

// Parking is the store of parked messages. Safe for concurrent use.
type Parking struct{ *Core }

// origin is what a row that replaces another takes over from it.
type origin struct {
	id      int64
	firstAt Time
	history []byte
}

const removeParked = `DELETE FROM parked WHERE id = ? AND lease_token = ? RETURNING first_at, history`

// writeParked removes the row of settles, if its lease holds, and writes row, in the removed one's place where there is one. Either may be nil.
func writeParked(ctx context.Context, s Session, row *parking.Row, settles *parking.Lease) error {
	var from *origin
	if settles != nil {
		remove := &Stmt{Query: removeParked, Args: []any{settles.ID, settles.Token}, Row: func(scan Scan) error {
			from = &origin{id: settles.ID}
			return scan(&from.firstAt, &from.history)
		}}
		if err := s.Send(ctx, remove); err != nil {
			return fmt.Errorf("settle a parked message: %w", err)
		}
		if from == nil {
			return fmt.Errorf("settle parked message %d: %w", settles.ID, parking.ErrLeaseLost)
		}
	}
	if row == nil {
		return nil
	}
	if err := s.Send(ctx, insertParked(*row, from)); err != nil {
		return fmt.Errorf("park a message: %w", err)
	}
	return nil
}

const parkedCells = `state, scope, topic, message_uuid, idempotency_key, identity, ordering_key, ordering_id, fingerprint,
	payload, metadata, reason, class, error, attempts, holds, redriven, due_at, last_at, first_at, history`

const parkedValues = `?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {later}, {now}`

// Parking what is there already changes only attempts, error and last time, and keeps the later due time. A message whose
// outcome is unknown outranks a copy that waits: else nobody would be asked about it.
const parkedAgain = ` DO UPDATE SET
	attempts = CASE WHEN parked.attempts > excluded.attempts THEN parked.attempts ELSE excluded.attempts END,
	error = excluded.error, last_at = excluded.last_at,
	due_at = CASE WHEN parked.due_at > excluded.due_at THEN parked.due_at ELSE excluded.due_at END`

const parkedLive = ` ON CONFLICT (scope, identity, fingerprint) WHERE state IN ('waiting', 'in_doubt')` + parkedAgain + `,
	state = CASE WHEN excluded.state = 'in_doubt' THEN 'in_doubt' ELSE parked.state END,
	reason = CASE WHEN excluded.state = 'in_doubt' THEN excluded.reason ELSE parked.reason END,
	class = CASE WHEN excluded.state = 'in_doubt' THEN excluded.class ELSE parked.class END,
	holds = CASE WHEN excluded.state = 'in_doubt' THEN excluded.holds ELSE parked.holds END,
	lease_token = CASE WHEN excluded.state = 'in_doubt' THEN NULL ELSE parked.lease_token END`

const parkedDead = ` ON CONFLICT (scope, identity, fingerprint, reason) WHERE state = 'dead'` + parkedAgain

const (
	parkNew     = `INSERT INTO parked (` + parkedCells + `) VALUES (` + parkedValues + `, {now}, ?)`
	parkInPlace = `INSERT INTO parked (` + parkedCells + `, id) VALUES (` + parkedValues + `, ?, ?, ?)`
)

func insertParked(r parking.Row, from *origin) *Stmt {
	s := &Stmt{Query: parkNew, Args: []any{
		string(r.State), r.Scope, r.Topic, []byte(r.UUID), []byte(r.Key), identity(r.Key, r.UUID), []byte(r.OrderingKey), orderID(r.OrderingKey), r.Fingerprint,
		notNil(r.Payload), encodeMetadata(r.Metadata), readable(r.Reason, 255), readable(r.Class, 255), []byte(cut(r.Error, maxErrorText)),
		int64(r.Attempts), r.Holds, r.Redriven, Later(max(r.DueIn, 0)),
	}}
	if from == nil {
		s.Args = append(s.Args, encodeHistory(r.History))
	} else {
		history := from.history
		if len(r.History) > 0 {
			history = encodeHistory(r.History)
		}
		s.Query = parkInPlace
		s.Args = append(s.Args, from.firstAt.Time, history, from.id)
	}
	if r.State == parking.Dead {
		s.Query += parkedDead
	} else {
		s.Query += parkedLive
	}
	return s
}

func encodeHistory(h []parking.Action) []byte {
	if h == nil {
		h = []parking.Action{}
	}
	return mustJSON(h)
}

// Park implements parking.Store.
func (p *Parking) Park(ctx context.Context, rows []parking.Row) error {
	stmts := make([]*Stmt, len(rows))
	for i, r := range rows {
		stmts[i] = insertParked(r, nil)
	}
	if len(stmts) == 0 {
		return nil
	}
	if err := p.sender.Do(ctx, stmts...); err != nil {
		return fmt.Errorf("park messages: %w", err)
	}
	p.committed(false, true)
	return nil
}

// Wake returns a channel that gets a value, coalesced, when a commit of this process parked or settled messages.
func (p *Parking) Wake() <-chan struct{} { return p.parked.ch }

const extendLease = `UPDATE parked SET lease_until = {later} WHERE id = ? AND lease_token = ?`

// Extend implements parking.Store.
func (p *Parking) Extend(ctx context.Context, l parking.Lease, lease time.Duration) error {
	return p.leased(Urgent(ctx), "extend a lease", l, &Stmt{Query: extendLease, Args: []any{Later(lease), l.ID, l.Token}})
}

const postpone = `UPDATE parked SET lease_token = NULL, lease_until = NULL, due_at = {later}, last_at = {now}, attempts = ?, reason = ?, class = ?, error = ?
WHERE id = ? AND lease_token = ?`

// Postpone implements parking.Store.
func (p *Parking) Postpone(ctx context.Context, l parking.Lease, due time.Duration, change parking.Row) error {
	err := p.leased(ctx, "postpone a message", l, &Stmt{Query: postpone, Args: []any{
		Later(max(due, 0)), int64(change.Attempts), readable(change.Reason, 255), readable(change.Class, 255), []byte(cut(change.Error, maxErrorText)), l.ID, l.Token,
	}})
	if err == nil {
		p.committed(false, true)
	}
	return err
}

const releaseParked = `UPDATE parked SET lease_token = NULL, lease_until = NULL, due_at = CASE WHEN due_at > {now} THEN {now} ELSE due_at END WHERE id = ? AND lease_token = ?`

// Release implements parking.Store.
func (p *Parking) Release(ctx context.Context, l parking.Lease) error {
	if err := p.sender.Do(ctx, &Stmt{Query: releaseParked, Args: []any{l.ID, l.Token}}); err != nil {
		return fmt.Errorf("release a parked message: %w", err)
	}
	p.committed(false, true)
	return nil
}

// leased runs a change of a leased row.
func (p *Parking) leased(ctx context.Context, doing string, l parking.Lease, s *Stmt) error {
	if err := p.sender.Do(ctx, s); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if s.Changed == 0 {
		return fmt.Errorf("%s: message %d: %w", doing, l.ID, parking.ErrLeaseLost)
	}
	return nil
}
