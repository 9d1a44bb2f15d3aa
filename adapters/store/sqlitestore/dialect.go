package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// dialect is SQLite. Its clock is the machine's, which is where the database is: each statement gets it as its first argument.
type dialect struct{ now func() time.Time }

var _ sqlcore.Dialect = dialect{}

func (dialect) Name() string { return "sqlite" }

func (d dialect) Bind(s *sqlcore.Stmt) (string, []any) {
	if s.Native {
		return s.Query, s.Args
	}
	now := d.now()
	query, args := sqlcore.Spell(spelling{now}, s, sqlcore.FormatTime(now))
	if len(args) == 1 && !strings.Contains(query, "?1") {
		args = nil
	}
	return query, args
}

// Primary result codes of SQLite; an extended code has its own in the upper bits.
const primaryCode = 0xff

func (dialect) Classify(err error) keystore.Fault {
	if errors.Is(err, errTurn) {
		return keystore.FaultContention
	}
	if errors.Is(err, driver.ErrBadConn) {
		return keystore.FaultUnavailable
	}
	var e *sqlite.Error
	if !errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return keystore.FaultOther
	}
	switch e.Code() & primaryCode {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return keystore.FaultContention
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_CORRUPT,
		sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL:
		return keystore.FaultUnavailable
	}
	return keystore.FaultOther
}

func (dialect) Unique(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// undone reports that a COMMIT that failed with err left nothing behind: the driver rolls back what SQLite refuses.
func undone(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Code() & primaryCode
	return code != sqlite3.SQLITE_IOERR
}

// spelling writes queries at one moment of the clock, which is argument 1.
type spelling struct{ now time.Time }

var _ sqlcore.Spelling = spelling{}

func (spelling) Placeholder(n int) string { return "?" + strconv.Itoa(n) }

var words = map[string]string{
	"now": "?1", "clock": "?1", "true": "1", "false": "0", "empty": "x''",
	"server": "'file'", "json": "", "lock": "", "share": "", "skip": "", // one writer: nothing to lock
}

func (spelling) Word(name, arg string) (string, bool) {
	switch name {
	case "at":
		return arg, true
	case "ident":
		return "CAST('k' || " + arg + " AS BLOB)", true
	}
	w, ok := words[name]
	return w, ok
}

func (spelling) Later(w *sqlcore.Text, d sqlcore.Later) { w.Arg(d) }

func (spelling) Rows(w *sqlcore.Text, s *sqlcore.Set) {
	w.Raw("VALUES ")
	for i, row := range s.Rows {
		if i > 0 {
			w.Raw(", ")
		}
		w.Raw("(")
		for _, v := range row {
			w.Arg(v)
			w.Raw(", ")
		}
		w.Raw(strconv.Itoa(i+1) + ")")
	}
}

func (spelling) List(w *sqlcore.Text, l *sqlcore.List) {
	w.Raw("IN (")
	for i, v := range l.Values {
		if i > 0 {
			w.Raw(", ")
		}
		w.Arg(v)
	}
	w.Raw(")")
}

func (s spelling) Value(v any) any {
	switch v := v.(type) {
	case sqlcore.Later:
		return sqlcore.FormatTime(s.now.Add(time.Duration(v)))
	case sqlcore.Length:
		return int64(utf8.RuneCountInString(string(v)))
	case time.Time:
		return sqlcore.FormatTime(v)
	case []byte:
		if v == nil {
			return nil
		}
	}
	return v
}
