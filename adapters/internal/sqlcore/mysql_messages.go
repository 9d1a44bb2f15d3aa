package sqlcore

import (
	"strings"
	"time"
)

// mysqlInsertOutgoing has no table of arguments: payloads of any size go as they are.
func mysqlInsertOutgoing(rows [][]any) *Stmt {
	cells := make([][]any, len(rows))
	for i, row := range rows {
		last := len(row) - 1
		at := row[last]
		if t, ok := at.(time.Time); ok { // a driver would write it in the time zone of its pool, which may be somebody else's
			at = t.UTC().Format("2006-01-02 15:04:05.000000")
		}
		cells[i] = append(append([]any{}, row[:last]...), at, at) // due_at is deliver_at
	}
	text, args := valuesOf(`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now})`, cells)
	return &Stmt{Args: args, Query: intoOutbox + ` (lane, topic, message_uuid, idempotency_key, ordering_key, metadata, payload, scope, parent_key, deliver_at, due_at, created_at) VALUES ` + text}
}

// Each part names its index: the lanes' statistics change all the time, and the plan must not follow them.
const (
	mysqlNotBehind = `(o.ordering_key = '' OR NOT EXISTS (SELECT 1 FROM outbox b FORCE INDEX (outbox_order) WHERE b.lane = o.lane AND b.ordering_key = o.ordering_key
	AND b.id < o.id AND NOT b.aside AND b.due_at > {clock} AND (b.deliver_at IS NULL OR b.deliver_at <= {clock})))`

	mysqlFetchRecords = `SELECT ` + outboxColumns + ` FROM (
	SELECT a.id FROM (SELECT o.id FROM outbox o FORCE INDEX (outbox_due) WHERE ` + outboxOpen + ` AND o.due_at IS NULL AND ` + mysqlNotBehind + ` ORDER BY o.id LIMIT ?) a
	UNION ALL
	SELECT b.id FROM (SELECT o.id FROM outbox o FORCE INDEX (outbox_due) WHERE ` + outboxOpen + ` AND o.due_at <= {clock} AND ` + mysqlNotBehind + ` ORDER BY o.id LIMIT ?) b
) x STRAIGHT_JOIN outbox o FORCE INDEX (PRIMARY) ON o.id = x.id ORDER BY o.id LIMIT ?`
)

const mysqlDeleteDone = `DELETE o FROM outbox o FORCE INDEX (PRIMARY) WHERE o.lane = ? AND o.id {list}` + guardLane

const mysqlNoteRelay = `INSERT INTO outbox_relays (owner, live_until) VALUES (?, {later}) ON DUPLICATE KEY UPDATE live_until = VALUES(live_until)`

const (
	mysqlReadParked   = `SELECT first_at, history FROM parked WHERE id = ? AND lease_token = ? {lock parked}`
	mysqlRemoveParked = `DELETE p FROM parked p FORCE INDEX (PRIMARY) WHERE p.id = ? AND p.lease_token = ?`
)

const mysqlParkedAgain = ` ON DUPLICATE KEY UPDATE attempts = greatest(attempts, VALUES(attempts)),
	error = VALUES(error), last_at = VALUES(last_at), due_at = greatest(due_at, VALUES(due_at))`

const mysqlParkedLive = mysqlParkedAgain + `,
	reason = CASE WHEN VALUES(state) = 'in_doubt' THEN VALUES(reason) ELSE reason END,
	class = CASE WHEN VALUES(state) = 'in_doubt' THEN VALUES(class) ELSE class END,
	holds = CASE WHEN VALUES(state) = 'in_doubt' THEN VALUES(holds) ELSE holds END,
	lease_token = CASE WHEN VALUES(state) = 'in_doubt' THEN NULL ELSE lease_token END,
	state = CASE WHEN VALUES(state) = 'in_doubt' THEN 'in_doubt' ELSE state END`

const (
	mysqlSelectOld = `SELECT p.id FROM parked p WHERE p.state = 'dead' AND p.last_at < {later} ORDER BY p.last_at LIMIT ? {skip p}`
	mysqlDeleteOld = `DELETE p FROM parked p FORCE INDEX (PRIMARY) WHERE p.id {list}`
)

// mysqlPrune reads and locks first; the list of the second statement is what the first one found.
func mysqlPrune(s *Stmt) []*Stmt {
	old := &List{Type: "int"}
	return []*Stmt{
		{Query: mysqlSelectOld, Args: s.Args, Row: intoList(old)},
		{Query: mysqlDeleteOld, List: old},
	}
}

// intoList collects ids.
func intoList(l *List) func(Scan) error {
	return func(scan Scan) error {
		var id int64
		err := scan(&id)
		l.Values = append(l.Values, id)
		return err
	}
}

// A scope's candidates are found in the order of its index, without locks; then they are judged again, locked. One that a rival holds is left out.
const (
	mysqlHead = `(p.ordering_id IS NULL OR NOT EXISTS (SELECT 1 FROM parked o FORCE INDEX (parked_order) WHERE o.scope = p.scope AND o.ordering_id = p.ordering_id
	AND o.id < p.id AND (o.state = 'waiting' OR o.holds)))`
	mysqlDueOfScope = `(SELECT p.id FROM parked p FORCE INDEX (parked_due) WHERE p.state = 'waiting' AND p.scope = ? AND p.due_at <= {clock}
	AND (p.lease_until IS NULL OR p.lease_until <= {clock}) AND ` + mysqlHead + ` ORDER BY p.due_at, p.id LIMIT ?)`
	mysqlLockDue = ` c STRAIGHT_JOIN parked p FORCE INDEX (PRIMARY) ON p.id = c.id
WHERE p.state = 'waiting' AND p.due_at <= {clock} AND (p.lease_until IS NULL OR p.lease_until <= {clock}) AND ` + mysqlHead + `
ORDER BY p.due_at, p.id LIMIT ? {skip p}`
	mysqlTakeDue = `UPDATE parked p FORCE INDEX (PRIMARY) SET p.suspect = (p.lease_token IS NOT NULL), p.lease_token = ?, p.lease_until = {later} WHERE p.id {list}`
	mysqlReadDue = `SELECT suspect, ` + parkedColumns + ` FROM parked WHERE id {list}`
)

func mysqlLeaseDue(s *Stmt) []*Stmt {
	limit, lease := s.Args[0], s.Args[1:]
	var args []any
	arms := make([]string, len(s.List.Values))
	for i, scope := range s.List.Values {
		arms[i] = mysqlDueOfScope
		args = append(args, scope, limit)
	}
	due := &List{Type: "int"}
	return []*Stmt{
		{
			Query: `SELECT p.id FROM (` + strings.Join(arms, " UNION ALL ") + `)` + mysqlLockDue, Args: append(args, limit),
			Row: intoList(due),
		},
		{Query: mysqlTakeDue, List: due, Args: lease},
		{Query: mysqlReadDue, List: due, Row: s.Row},
	}
}

const mysqlNextOfScope = `(SELECT p.due_at AS at FROM parked p FORCE INDEX (parked_due) WHERE p.state = 'waiting' AND p.scope = ? AND p.lease_token IS NULL AND ` + mysqlHead + `
	ORDER BY p.due_at LIMIT 1)
	UNION ALL (SELECT greatest(p.lease_until, p.due_at) AS at FROM parked p FORCE INDEX (parked_leased)
	WHERE p.state = 'waiting' AND p.scope = ? AND p.lease_token IS NOT NULL AND ` + mysqlHead + `)`

func mysqlNextDue(s *Stmt) []*Stmt {
	var args []any
	arms := make([]string, len(s.Set.Rows))
	for i, row := range s.Set.Rows {
		arms[i] = mysqlNextOfScope
		args = append(args, row[0], row[0])
	}
	return []*Stmt{{Query: `SELECT min(n.at), {now} FROM (` + strings.Join(arms, " UNION ALL ") + `) n`, Args: args, Row: s.Row}}
}
