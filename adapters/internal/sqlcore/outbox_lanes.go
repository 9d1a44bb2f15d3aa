package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// laneRow is a lane as it stands.
type laneRow struct {
	number int
	owner  string
	token  string
	over   bool
}

const (
	noteRelay   = `INSERT INTO outbox_relays (owner, live_until) VALUES (?, {later}) ON CONFLICT (owner) DO UPDATE SET live_until = excluded.live_until`
	dropRelays  = `DELETE FROM outbox_relays WHERE live_until <= {clock} AND owner <> ?`
	countRelays = `SELECT count(*) FROM outbox_relays`
	selectLanes = `SELECT lane, owner, token, CASE WHEN lease_until > {now} THEN 0 ELSE 1 END FROM outbox_lanes ORDER BY lane {lock outbox_lanes}`
	updateLane  = `UPDATE outbox_lanes SET owner = ?, token = ?, lease_until = {later} WHERE lane = ?`
	freeLane    = `UPDATE outbox_lanes SET owner = NULL, token = NULL, lease_until = NULL WHERE lane = ?`
	freeOwned   = `UPDATE outbox_lanes SET owner = NULL, token = NULL, lease_until = NULL WHERE owner = ?`
	forgetRelay = `DELETE FROM outbox_relays WHERE owner = ?`
)

// AcquireLanes implements outbox.Source. Relays announce themselves first, so that one that holds nothing yet counts in the shares of the others. The
// lanes' rows are locked, in order, by one relay at a time.
func (o *Outbox) AcquireLanes(ctx context.Context, owner string, lease time.Duration) ([]outbox.Lane, error) {
	var lanes []outbox.Lane
	err := o.inTx(Urgent(ctx), func(s Session) (err error) {
		lanes, err = acquireLanes(ctx, s, owner, lease)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire outbox lanes: %w", err)
	}
	return lanes, nil
}

func acquireLanes(ctx context.Context, s Session, owner string, lease time.Duration) ([]outbox.Lane, error) {
	var rows []laneRow
	var relays int
	err := s.Send(ctx,
		&Stmt{Query: selectLanes, Row: func(scan Scan) error {
			r, err := scanLane(scan)
			rows = append(rows, r)
			return err
		}},
		&Stmt{Query: noteRelay, Args: []any{owner, Later(lease)}},
		&Stmt{Query: dropRelays, Args: []any{owner}},
		&Stmt{Query: countRelays, Row: func(scan Scan) error { return scan(&relays) }},
	)
	if err != nil {
		return nil, err
	}
	share := (outbox.Lanes + relays - 1) / max(relays, 1)
	lanes, stmts := shareLanes(rows, owner, share, lease)
	return lanes, s.Send(ctx, stmts...)
}

func scanLane(scan Scan) (laneRow, error) {
	var r laneRow
	var owner, token *string
	var over int
	err := scan(&r.number, &owner, &token, &over)
	r.owner, r.token, r.over = deref(owner), deref(token), over == 1
	return r, err
}

// shareLanes keeps, gives up and takes lanes until owner has its share of them.
func shareLanes(rows []laneRow, owner string, share int, lease time.Duration) ([]outbox.Lane, []*Stmt) {
	var lanes []outbox.Lane
	var stmts []*Stmt
	hold := func(number int, token string) {
		lanes = append(lanes, outbox.Lane{Number: number, Token: token})
		stmts = append(stmts, &Stmt{Query: updateLane, Args: []any{owner, token, Later(lease), int64(number)}})
	}
	for _, r := range rows {
		switch {
		case r.owner != owner:
		case len(lanes) < share:
			hold(r.number, r.token)
		default:
			stmts = append(stmts, &Stmt{Query: freeLane, Args: []any{int64(r.number)}})
		}
	}
	for _, r := range rows {
		if len(lanes) < share && r.owner != owner && (r.owner == "" || r.over) {
			hold(r.number, newToken())
		}
	}
	return lanes, stmts
}

// ReleaseLanes implements outbox.Source.
func (o *Outbox) ReleaseLanes(ctx context.Context, owner string) error {
	err := o.sender.Do(ctx, &Stmt{Query: freeOwned, Args: []any{owner}}, &Stmt{Query: forgetRelay, Args: []any{owner}})
	if err != nil {
		return fmt.Errorf("release outbox lanes: %w", err)
	}
	return nil
}
