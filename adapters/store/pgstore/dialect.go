package pgstore

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
)

// dialect is PostgreSQL.
type dialect struct{}

var _ sqlcore.Dialect = dialect{}

func (dialect) Name() string { return "postgres" }

func (dialect) Bind(s *sqlcore.Stmt) (string, []any) { return sqlcore.Spell(spelling{}, s) }

type spelling struct{}

var _ sqlcore.Spelling = spelling{}

func (spelling) Placeholder(n int) string { return "$" + strconv.Itoa(n) }

// The clock is the database's, and moves on within a transaction. In a comparison it stands in a subquery, which is read
// once, so that an index can be used.
const (
	now   = "clock_timestamp()"
	clock = "(SELECT clock_timestamp())"
)

// server is the cluster and its timeline, which a promotion and a restore to a point in time begin anew. The control file would tell
// the timeline only after the next checkpoint.
const server = `((SELECT system_identifier FROM pg_control_system())::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))`

func (spelling) Word(name, arg string) (string, bool) {
	switch name {
	case "now":
		return now, true
	case "clock":
		return clock, true
	case "true", "false":
		return name, true
	case "empty":
		return `''::bytea`, true
	case "json":
		return "::json", true
	case "lock":
		return "FOR UPDATE OF " + arg, true
	case "share":
		return "FOR SHARE", true
	case "skip":
		return "FOR UPDATE OF " + arg + " SKIP LOCKED", true
	case "at":
		return "(" + now + " + " + arg + " * interval '1 microsecond')", true
	case "server":
		return server, true
	case "ident":
		return "convert_to('k' || " + arg + ", 'UTF8')", true
	}
	return "", false
}

func (spelling) Later(w *sqlcore.Text, d sqlcore.Later) {
	w.Raw("((SELECT clock_timestamp()) + ")
	w.Arg(d)
	w.Raw("::bigint * interval '1 microsecond')")
}

// Rows are arrays, one a column: the text of a query does not depend on the number of rows.
func (spelling) Rows(w *sqlcore.Text, s *sqlcore.Set) {
	w.Raw("SELECT * FROM unnest(")
	for i, typ := range s.Types {
		if i > 0 {
			w.Raw(", ")
		}
		w.Arg(column(typ, s.Rows, i))
		w.Raw("::" + arrayTypes[typ])
	}
	w.Raw(") WITH ORDINALITY")
}

func (spelling) List(w *sqlcore.Text, l *sqlcore.List) {
	rows := make([][]any, len(l.Values))
	for i, v := range l.Values {
		rows[i] = []any{v}
	}
	w.Raw("= ANY(")
	w.Arg(column(l.Type, rows, 0))
	w.Raw("::" + arrayTypes[l.Type] + ")")
}

func (spelling) Value(v any) any {
	switch v := v.(type) {
	case sqlcore.Later:
		return time.Duration(v).Microseconds()
	case sqlcore.Length:
		return int64(utf8.RuneCountInString(string(v)))
	}
	return v
}

var arrayTypes = map[string]string{
	"text": "text[]", "bytes": "bytea[]", "int": "bigint[]", "later": "bigint[]", "time": "timestamptz[]",
}

// column is one column of rows as an array that pgx encodes.
func column(typ string, rows [][]any, i int) any {
	switch typ {
	case "text":
		return values[string](rows, i)
	case "int":
		return values[int64](rows, i)
	case "time":
		return values[time.Time](rows, i)
	case "later":
		a := make([]int64, len(rows))
		for n, row := range rows {
			a[n] = time.Duration(row[i].(sqlcore.Later)).Microseconds()
		}
		return a
	}
	a := make([][]byte, len(rows))
	for n, row := range rows {
		a[n], _ = row[i].([]byte)
	}
	return a
}

// values are pointers, nil for NULL.
func values[T any](rows [][]any, i int) []*T {
	a := make([]*T, len(rows))
	for n, row := range rows {
		if v, ok := row[i].(T); ok {
			a[n] = &v
		}
	}
	return a
}
