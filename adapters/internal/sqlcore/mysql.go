package sqlcore

import (
	"slices"
	"strings"
)

// Rephraser is implemented by a Dialect whose database cannot run every statement as it is written.
type Rephraser interface {
	// Rephrase returns the statements that are run, in order, in the place of s.
	Rephrase(s *Stmt) []*Stmt
}

// phrases are the statements that are run in the place of s.
func phrases(d Dialect, s *Stmt) []*Stmt {
	if r, ok := d.(Rephraser); ok && !s.Native {
		return r.Rephrase(s)
	}
	return []*Stmt{s}
}

// ForMySQL says s without RETURNING, ON CONFLICT, partial indexes and UPDATE … FROM, for MySQL and MariaDB alike.
//
// What removes or locks rows names the primary key as its index: on a small table the optimizer else prefers to read the whole
// of it, and then waits for the locks of rows that it does not want.
func ForMySQL(s *Stmt) []*Stmt {
	switch s.Query {
	case insertTransactional, insertLeased:
		return mysqlClaim(s)
	case selectKeys:
		return say(s, mysqlSelectKeys)
	case selectKeys + ` ORDER BY v.ord {lock p}`:
		return say(s, mysqlSelectKeys+` ORDER BY v.ord {lock p}`)
	case completeHeld:
		return []*Stmt{mysqlUpsertKeys(s.Set.Rows)}
	case completeExpected:
		return []*Stmt{mysqlUpsertResults(s.Set.Rows)}
	case completeLeased:
		return eachRow(s, mysqlCompleteLeased)
	case keepOutputs:
		return eachRow(s, mysqlKeepOutputs)
	case restoreFailed:
		return eachRow(s, mysqlRestoreFailed)
	case deleteLeased:
		return eachRow(s, mysqlDeleteLeased)
	case deleteKeys:
		return say(s, mysqlDeleteKeys)
	case lookupKey:
		return say(s, mysqlLookupKey)
	case countScopes:
		return say(s, mysqlCountScopes)
	case insertOutgoing:
		return []*Stmt{mysqlInsertOutgoing(s.Set.Rows)}
	case fetchRecords:
		return say(s, mysqlFetchRecords)
	case deleteDone:
		return say(s, mysqlDeleteDone)
	case noteRelay:
		return say(s, mysqlNoteRelay)
	}
	return mysqlAttempts(s)
}

func mysqlAttempts(s *Stmt) []*Stmt {
	switch s.Query {
	case countFailure:
		return thenRead(s, mysqlCountFailure, `SELECT failures FROM attempts WHERE scope = ? AND idempotency_key = ?`, s.Args[:2])
	case noteSuspect:
		return thenRead(s, mysqlNoteSuspect, `SELECT suspected FROM attempts WHERE scope = ? AND idempotency_key = ?`, s.Args[:2])
	case dropAbsolved:
		return say(s, mysqlDropAbsolved)
	case deleteAttempts:
		return say(s, mysqlDeleteAttempts)
	case deleteOldAttempts:
		return mysqlDeleteOldAttempts(s)
	}
	return mysqlParking(s)
}

func mysqlParking(s *Stmt) []*Stmt {
	switch s.Query {
	case removeParked:
		return []*Stmt{
			{Query: mysqlReadParked, Args: s.Args, Row: s.Row},
			{Query: mysqlRemoveParked, Args: s.Args},
		}
	case prune:
		return mysqlPrune(s)
	case leaseDue:
		return mysqlLeaseDue(s)
	case nextDue:
		return mysqlNextDue(s)
	}
	if insert, ok := strings.CutSuffix(s.Query, parkedLive); ok {
		return say(s, insert+mysqlParkedLive)
	}
	if insert, ok := strings.CutSuffix(s.Query, parkedDead); ok {
		return say(s, insert+mysqlParkedAgain)
	}
	return []*Stmt{s}
}

// say is s in other words, with the same arguments.
func say(s *Stmt, query string) []*Stmt {
	return []*Stmt{{Query: query, Set: s.Set, List: s.List, Args: s.Args, Row: s.Row}}
}

// thenRead runs s in other words, and reads what s would have returned.
func thenRead(s *Stmt, query, read string, args []any) []*Stmt {
	return []*Stmt{{Query: query, Args: s.Args}, {Query: read, Args: args, Row: s.Row}}
}

// eachRow runs a statement for each row of a set. Its arguments are cells of the row.
func eachRow(s *Stmt, query numbered) []*Stmt {
	stmts := make([]*Stmt, len(s.Set.Rows))
	for i, row := range s.Set.Rows {
		args := make([]any, len(query.cells))
		for n, cell := range query.cells {
			args[n] = row[cell]
		}
		stmts[i] = &Stmt{Query: query.text, Args: args}
	}
	return stmts
}

// numbered is a query with the cells of a row that its arguments are.
type numbered struct {
	text  string
	cells []int
}

// valuesOf repeats a row of a multi-row insert, and puts the cells of all rows one behind the other.
func valuesOf(row string, rows [][]any) (string, []any) {
	text := strings.TrimSuffix(strings.Repeat(row+", ", len(rows)), ", ")
	return text, slices.Concat(rows...)
}
