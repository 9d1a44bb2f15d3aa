package mysqlstore

import (
	"strconv"
	"time"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
)

// dialect is MySQL and MariaDB.
type dialect struct {
	clock string // an expression
}

var (
	_ sqlcore.Dialect   = dialect{}
	_ sqlcore.Rephraser = dialect{}
)

func (dialect) Name() string { return "mysql" }

func (d dialect) Bind(s *sqlcore.Stmt) (string, []any) { return sqlcore.Spell(spelling(d), s) }

func (dialect) Rephrase(s *sqlcore.Stmt) []*sqlcore.Stmt { return sqlcore.ForMySQL(s) }

type spelling struct {
	clock string
}

var _ sqlcore.Spelling = spelling{}

func (spelling) Placeholder(int) string { return "?" }

// serverClock is the server's time at the begin of the statement, in UTC whatever the time zone of the session.
const serverClock = "utc_timestamp(6)"

// FOR UPDATE and LOCK IN SHARE MODE name no table: MariaDB cannot, and where a query of ours locks it reads one table, or
// one and rows of arguments.
var words = map[string]string{
	"true": "true", "false": "false", "empty": "''", "json": "",
	"server": "concat(@@hostname, '/', @@port, '/', @@server_id)", // MariaDB has no server_uuid
	"lock":   "FOR UPDATE", "share": "LOCK IN SHARE MODE", "skip": "FOR UPDATE SKIP LOCKED",
}

func (sp spelling) Word(name, arg string) (string, bool) {
	switch name {
	case "now", "clock":
		return sp.clock, true
	case "at":
		return "(" + sp.clock + " + INTERVAL " + arg + " MICROSECOND)", true
	case "ident":
		return "CONCAT(_binary'k', " + arg + ")", true
	}
	w, ok := words[name]
	return w, ok
}

func (sp spelling) Later(w *sqlcore.Text, d sqlcore.Later) {
	w.Raw("(" + sp.clock + " + INTERVAL ")
	w.Arg(d)
	w.Raw(" MICROSECOND)")
}

// Rows are a union of selects, which both databases take; the columns are called c1, c2, …, ord unless the query names them.
func (spelling) Rows(w *sqlcore.Text, s *sqlcore.Set) {
	for i, row := range s.Rows {
		if i > 0 {
			w.Raw(" UNION ALL ")
		}
		w.Raw("SELECT ")
		for n, v := range row {
			w.Arg(v)
			if i == 0 {
				w.Raw(" AS c" + strconv.Itoa(n+1))
			}
			w.Raw(", ")
		}
		w.Raw(strconv.Itoa(i + 1))
		if i == 0 {
			w.Raw(" AS ord")
		}
	}
}

// List is never empty: nothing is NULL.
func (spelling) List(w *sqlcore.Text, l *sqlcore.List) {
	w.Raw("IN (NULL")
	for _, v := range l.Values {
		w.Raw(", ")
		w.Arg(v)
	}
	w.Raw(")")
}

// Value turns text into bytes: no column and no comparison of the store has a collation.
func (spelling) Value(v any) any {
	switch v := v.(type) {
	case sqlcore.Later:
		return time.Duration(v).Microseconds()
	case sqlcore.Length:
		return int64(len(v))
	case string:
		return []byte(v)
	case []byte:
		if v == nil {
			return nil
		}
	}
	return v
}
