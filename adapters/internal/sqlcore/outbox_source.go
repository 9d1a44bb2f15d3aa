package sqlcore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/middleware/outbox"
)

const maxReason = 1 << 10

// Outbox is the relay's side of the outbox. Safe for concurrent use.
type Outbox struct{ *Core }

var _ outbox.Source = (*Outbox)(nil)

// Wake implements outbox.Source.
func (o *Outbox) Wake() <-chan struct{} {
	o.onWatch()
	return o.outgoing.ch
}

const outboxColumns = `o.id, o.topic, o.message_uuid, o.idempotency_key, o.ordering_key, o.metadata, o.payload, o.deliver_at,
	o.scope, o.parent_key, o.created_at, o.attempts, o.aside, o.reason`

func scanRecord(scan Scan) (outbox.Record, error) {
	var (
		r                  outbox.Record
		metadata           []byte
		deliverAt, created Time
	)
	err := scan(&r.ID, &r.Topic, &r.UUID, &r.Key, &r.OrderingKey, &metadata, &r.Payload, &deliverAt,
		&r.Scope, &r.ParentKey, &created, &r.Attempts, &r.Aside, &r.Reason)
	if err != nil {
		return r, err
	}
	r.DeliverAt, r.CreatedAt = deliverAt.Time, created.Time
	r.Metadata, err = decodeMetadata(metadata)
	return r, err
}

// A record is found by its state, never by its place behind another: what commits late is found late. The two arms are the records
// that are due at once, and those that waited for a time which has come.
const (
	outboxOpen   = `o.lane = ? AND NOT o.aside`
	notBehind    = `(o.ordering_key = '' OR NOT EXISTS (SELECT 1 FROM outbox b WHERE b.lane = o.lane AND b.ordering_key = o.ordering_key AND b.id < o.id AND NOT b.aside AND b.due_at > {clock} AND (b.deliver_at IS NULL OR b.deliver_at <= {clock})))`
	fetchRecords = `SELECT ` + outboxColumns + ` FROM outbox o WHERE o.id IN (
	SELECT a.id FROM (SELECT o.id FROM outbox o WHERE ` + outboxOpen + ` AND o.due_at IS NULL AND ` + notBehind + ` ORDER BY o.id LIMIT ?) a
	UNION ALL
	SELECT b.id FROM (SELECT o.id FROM outbox o WHERE ` + outboxOpen + ` AND o.due_at <= {clock} AND ` + notBehind + ` ORDER BY o.id LIMIT ?) b
) ORDER BY o.id LIMIT ?`
)

const ownLane = `SELECT 1 FROM outbox_lanes WHERE lane = ? AND token = ?`

// Fetch implements outbox.Source.
func (o *Outbox) Fetch(ctx context.Context, lane outbox.Lane, limit int) ([]outbox.Record, error) {
	var records []outbox.Record
	number, n := int64(lane.Number), int64(limit)
	owned, check := ownsLane(lane, ownLane)
	fetch := &Stmt{Query: fetchRecords, Args: []any{number, n, number, n, n}, Row: func(scan Scan) error {
		r, err := scanRecord(scan)
		records = append(records, r)
		return err
	}}
	if err := o.sender.Read(ctx, check, fetch); err != nil {
		return nil, fmt.Errorf("fetch outgoing messages of lane %d: %w", lane.Number, err)
	}
	if !*owned {
		return nil, fmt.Errorf("fetch outgoing messages of lane %d: %w", lane.Number, outbox.ErrLaneLost)
	}
	return records, nil
}

func ownsLane(lane outbox.Lane, query string) (*bool, *Stmt) {
	owned := new(bool)
	return owned, &Stmt{Query: query, Args: []any{int64(lane.Number), lane.Token}, Row: func(scan Scan) error {
		var one int64
		*owned = true
		return scan(&one)
	}}
}

const guardLane = ` AND EXISTS (SELECT 1 FROM outbox_lanes l WHERE l.lane = ? AND l.token = ?)`

// change runs a relay's change of a lane: the lane is locked against a new owner, and the change names the token.
func (o *Outbox) change(ctx context.Context, doing string, lane outbox.Lane, stmts ...*Stmt) error {
	owned, check := ownsLane(lane, ownLane+` {share}`)
	if err := o.sender.Do(ctx, append([]*Stmt{check}, stmts...)...); err != nil {
		return fmt.Errorf("%s in lane %d: %w", doing, lane.Number, err)
	}
	if !*owned {
		return fmt.Errorf("%s in lane %d: %w", doing, lane.Number, outbox.ErrLaneLost)
	}
	return nil
}

const deleteDone = `DELETE FROM outbox WHERE lane = ? AND id {list}` + guardLane

// Done implements outbox.Source.
func (o *Outbox) Done(ctx context.Context, lane outbox.Lane, ids []int64) error {
	var stmts []*Stmt
	number := int64(lane.Number)
	for len(ids) > 0 {
		n := min(len(ids), maxSetRows)
		stmts = append(stmts, &Stmt{Query: deleteDone, List: intList(ids[:n]), Args: []any{number, number, lane.Token}})
		ids = ids[n:]
	}
	return o.change(ctx, "remove published messages", lane, stmts...)
}

func intList(ids []int64) *List {
	l := &List{Type: "int"}
	for _, id := range ids {
		l.Values = append(l.Values, id)
	}
	return l
}

const noteFailed = `UPDATE outbox SET attempts = attempts + ?, aside = ?, reason = ?, due_at = {later} WHERE lane = ? AND id = ?` + guardLane

// Failed implements outbox.Source.
func (o *Outbox) Failed(ctx context.Context, lane outbox.Lane, failures []outbox.Failure) error {
	number := int64(lane.Number)
	stmts := make([]*Stmt, len(failures))
	for i, f := range failures {
		counted := 1
		if f.Uncounted {
			counted = 0
		}
		stmts[i] = &Stmt{Query: noteFailed, Args: []any{
			counted, f.Aside, readable(f.Reason, maxReason), Later(max(f.RetryIn, 0)), number, f.ID, number, lane.Token,
		}}
	}
	return o.change(ctx, "note unpublished messages", lane, stmts...)
}

// Each count is over one partial index. A record that waits for a time is either delayed by its author or waits for its next attempt.
const outboxStatus = `SELECT
	(SELECT count(*) FROM outbox WHERE NOT aside AND due_at IS NULL),
	(SELECT count(*) FROM outbox WHERE NOT aside AND due_at IS NOT NULL),
	(SELECT count(*) FROM outbox WHERE NOT aside AND due_at IS NOT NULL AND deliver_at > {clock}),
	(SELECT count(*) FROM outbox WHERE aside),
	(SELECT o.created_at FROM outbox o WHERE NOT o.aside AND o.due_at IS NULL ORDER BY o.id LIMIT 1),
	(SELECT min(CASE WHEN deliver_at > created_at THEN deliver_at ELSE created_at END) FROM outbox
		WHERE NOT aside AND due_at IS NOT NULL AND (deliver_at IS NULL OR deliver_at <= {clock})),
	{now}`

// Status implements outbox.Source.
func (o *Outbox) Status(ctx context.Context) (outbox.Status, error) {
	var st outbox.Status
	s := &Stmt{Query: outboxStatus, Row: func(scan Scan) error {
		var timed int64
		var first, oldest, now Time
		err := scan(&st.Pending, &timed, &st.Delayed, &st.Aside, &first, &oldest, &now)
		st.Pending += timed - st.Delayed
		if oldest.IsZero() || !first.IsZero() && first.Before(oldest.Time) {
			oldest = first
		}
		if !oldest.IsZero() {
			st.OldestAge = max(now.Sub(oldest.Time), 0)
		}
		return err
	}}
	if err := o.sender.Read(ctx, s); err != nil {
		return outbox.Status{}, fmt.Errorf("count outgoing messages: %w", err)
	}
	return st, nil
}

// List implements outbox.Source.
func (o *Outbox) List(ctx context.Context, asideOnly bool, limit int) ([]outbox.Record, error) {
	if limit <= 0 {
		limit = defaultListLimit
	}
	var w where
	if asideOnly {
		w.add("o.aside")
	}
	var records []outbox.Record
	s := &Stmt{Query: `SELECT ` + outboxColumns + ` FROM outbox o` + w.String() + ` ORDER BY o.id LIMIT ?`, Args: []any{int64(limit)}, Row: func(scan Scan) error {
		r, err := scanRecord(scan)
		records = append(records, r)
		return err
	}}
	if err := o.sender.Read(ctx, s); err != nil {
		return nil, fmt.Errorf("list outgoing messages: %w", err)
	}
	return records, nil
}

const (
	retryAside = `UPDATE outbox SET aside = {false}, attempts = 0, reason = '', due_at = CASE WHEN deliver_at > {now} THEN deliver_at ELSE NULL END WHERE aside`
	dropAside  = `DELETE FROM outbox WHERE aside`
)

// Retry implements outbox.Source.
func (o *Outbox) Retry(ctx context.Context, ids []int64) (int, error) {
	s := &Stmt{Query: retryAside}
	if len(ids) > 0 {
		s = &Stmt{Query: retryAside + ` AND id {list}`, List: intList(ids)}
	}
	if err := o.sender.Do(ctx, s); err != nil {
		return 0, fmt.Errorf("retry set-aside messages: %w", err)
	}
	o.committed(s.Changed > 0, false)
	return int(s.Changed), nil
}

// Drop implements outbox.Source.
func (o *Outbox) Drop(ctx context.Context, ids []int64) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	s := &Stmt{Query: dropAside + ` AND id {list}`, List: intList(ids)}
	if err := o.sender.Do(ctx, s); err != nil {
		return 0, fmt.Errorf("drop set-aside messages: %w", err)
	}
	return int(s.Changed), nil
}
