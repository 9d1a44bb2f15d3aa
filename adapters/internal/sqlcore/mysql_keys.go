package sqlcore

const (
	mysqlClaimTransactional = `INSERT INTO processed_events (scope, idempotency_key, fingerprint, expires_at, owner, token, status, processed_at)
SELECT v.c1, v.c2, v.c3, {at v.c4}, v.c5, v.c6, 'completed', {now}` + mysqlMissing

	mysqlClaimLeased = `INSERT INTO processed_events (scope, idempotency_key, fingerprint, token, owner, lease_until, status, processed_at, first_at)
SELECT v.c1, v.c2, v.c3, v.c4, v.c5, {at v.c6}, 'in_progress', {now}, {now}` + mysqlMissing

	// What is there is read without a lock, and left alone: its holder may run for long. An update that changes nothing keeps the row of a
	// rival that was faster; INSERT IGNORE would cut a value that is too long.
	mysqlMissing = ` FROM ({rows}) v LEFT JOIN processed_events p FORCE INDEX (PRIMARY) ON p.scope = v.c1 AND p.idempotency_key = v.c2
WHERE p.scope IS NULL ORDER BY v.ord ON DUPLICATE KEY UPDATE takeovers = processed_events.takeovers`

	// mysqlAwaitKeys waits for rivals' uncommitted claims, and locks nothing where there is no row. An insert that waited would keep
	// a lock of the gap when the rival rolls back, and all who waited would deadlock. The limit keeps the inner select apart, which locks nothing.
	mysqlAwaitKeys = `SELECT 1 FROM (
	SELECT v.c1, v.c2 FROM ({rows}) v LEFT JOIN processed_events e FORCE INDEX (PRIMARY) ON e.scope = v.c1 AND e.idempotency_key = v.c2
	WHERE e.scope IS NULL ORDER BY v.ord LIMIT 1000000) m
STRAIGHT_JOIN processed_events p FORCE INDEX (PRIMARY) ON p.scope = m.c1 AND p.idempotency_key = m.c2 FOR UPDATE`

	mysqlOwnKeys = `SELECT p.scope, p.idempotency_key, p.token` + mysqlByToken

	mysqlOwnKeysTransactional = `SELECT p.scope, p.idempotency_key, NULL` + mysqlByToken

	mysqlByToken = ` FROM ({rows}) v STRAIGHT_JOIN processed_events p FORCE INDEX (PRIMARY)
	ON p.scope = v.c1 AND p.idempotency_key = v.c2 WHERE p.token = v.c3`
)

// mysqlClaim inserts keys, each with a token, and reads by the tokens which of them are new. That of a transactional claim may stay with the
// completed key, where it means nothing.
func mysqlClaim(s *Stmt) []*Stmt {
	insert, read, token, rows := mysqlClaimLeased, mysqlOwnKeys, 3, s.Set.Rows
	if s.Query == insertTransactional {
		insert, read, token = mysqlClaimTransactional, mysqlOwnKeysTransactional, 5
		own := newToken()
		rows = make([][]any, len(s.Set.Rows))
		for i, cells := range s.Set.Rows {
			rows[i] = append(append([]any{}, cells...), own)
		}
	}
	own := &Set{}
	for _, cells := range rows {
		own.Rows = append(own.Rows, []any{cells[0], cells[1], cells[token]})
	}
	return []*Stmt{
		{Query: mysqlAwaitKeys, Set: own, Row: func(Scan) error { return nil }},
		{Query: insert, Set: &Set{Rows: rows}},
		{Query: read, Set: own, Row: s.Row},
	}
}

const mysqlSelectKeys = `WITH v(scope, idempotency_key, ord) AS ({rows})
SELECT v.ord, ` + recordColumns + ` FROM v STRAIGHT_JOIN processed_events p FORCE INDEX (PRIMARY)
	ON p.scope = v.scope AND p.idempotency_key = v.idempotency_key`

// mysqlUpsertKeys completes keys that the transaction holds: their rows are there, and locked.
func mysqlUpsertKeys(rows [][]any) *Stmt {
	text, args := valuesOf(`(?, ?, ?, ?, {later}, ?, {now})`, rows)
	return &Stmt{Args: args, Query: `INSERT INTO processed_events (scope, idempotency_key, status, result, expires_at, owner, processed_at) VALUES ` + text + `
ON DUPLICATE KEY UPDATE status = VALUES(status), result = VALUES(result), processed_at = VALUES(processed_at), expires_at = VALUES(expires_at),
	owner = CASE WHEN VALUES(owner) = '' THEN owner ELSE VALUES(owner) END, token = NULL, lease_until = NULL, prior = NULL`}
}

// mysqlUpsertResults adds the results of keys that the transaction holds.
func mysqlUpsertResults(rows [][]any) *Stmt {
	text, args := valuesOf(`(?, ?, ?, 'completed', {now})`, rows)
	return &Stmt{Args: args, Query: `INSERT INTO processed_events (scope, idempotency_key, result, status, processed_at) VALUES ` + text + `
ON DUPLICATE KEY UPDATE result = VALUES(result)`}
}

const mysqlThisLease = ` WHERE scope = ? AND idempotency_key = ? AND token = ? AND status = 'in_progress'`

var (
	mysqlCompleteLeased = numbered{`UPDATE processed_events SET status = ?, result = ?, processed_at = {now}, expires_at = {later},
	owner = CASE WHEN ? = '' THEN owner ELSE ? END, token = NULL, lease_until = NULL, prior = NULL` + mysqlThisLease, []int{2, 3, 4, 5, 5, 0, 1, 6}}

	mysqlKeepOutputs = numbered{`UPDATE processed_events SET outputs = ? WHERE scope = ? AND idempotency_key = ?`, []int{2, 0, 1}}

	mysqlRestoreFailed = numbered{`UPDATE processed_events SET status = prior, prior = NULL, token = NULL, lease_until = NULL` +
		mysqlThisLease + ` AND prior IS NOT NULL`, []int{0, 1, 2}}

	mysqlDeleteLeased = numbered{`DELETE p FROM processed_events p FORCE INDEX (PRIMARY)` + mysqlThisLease + ` AND prior IS NULL`, []int{0, 1, 2}}
)

const mysqlDeleteKeys = `DELETE p FROM ({rows}) v STRAIGHT_JOIN processed_events p FORCE INDEX (PRIMARY)
	ON p.scope = v.c1 AND p.idempotency_key = v.c2`

const mysqlLookupKey = `SELECT ` + recordColumns + ` FROM (SELECT DISTINCT scope FROM processed_events) s
	STRAIGHT_JOIN processed_events p FORCE INDEX (PRIMARY) ON p.scope = s.scope AND p.idempotency_key = ? ORDER BY p.scope`

const mysqlCountScopes = `SELECT s.scope, CAST(sum(s.n) AS SIGNED) FROM (
	SELECT scope, count(*) AS n FROM processed_events GROUP BY scope
	UNION ALL SELECT DISTINCT scope, 0 FROM parked) s GROUP BY s.scope`

const mysqlCountFailure = `INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at, next_at)
VALUES (?, ?, 1, 0, ?, ?, {now}, {now}, {later})
ON DUPLICATE KEY UPDATE failures = failures + 1, last_class = VALUES(last_class),
	last_error = VALUES(last_error), last_at = VALUES(last_at), next_at = VALUES(next_at)`

const mysqlNoteSuspect = `INSERT INTO attempts (scope, idempotency_key, failures, suspected, last_class, last_error, first_at, last_at)
VALUES (?, ?, 0, 1, '', {empty}, {now}, {now})
ON DUPLICATE KEY UPDATE suspected = suspected + 1, last_at = VALUES(last_at)`

const (
	mysqlDropAbsolved   = `DELETE a FROM attempts a FORCE INDEX (PRIMARY) WHERE a.scope = ? AND a.idempotency_key = ? AND a.suspected = 0 AND a.failures = 0`
	mysqlDeleteAttempts = `DELETE a FROM attempts a FORCE INDEX (PRIMARY) WHERE a.scope = ? AND a.idempotency_key {list}`
)

const mysqlSelectOldAttempts = `SELECT a.idempotency_key FROM attempts a FORCE INDEX (attempts_age) WHERE a.scope = ? AND a.last_at < {later} ORDER BY a.last_at LIMIT ? {skip a}`

func mysqlDeleteOldAttempts(s *Stmt) []*Stmt {
	old := &List{Type: "bytes"}
	row := func(scan Scan) error {
		var key []byte
		err := scan(&key)
		old.Values = append(old.Values, key)
		return err
	}
	return []*Stmt{
		{Query: mysqlSelectOldAttempts, Args: s.Args[:3], Row: row},
		{Query: mysqlDeleteAttempts, Args: s.Args[3:], List: old},
	}
}
