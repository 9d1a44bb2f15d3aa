package sqlcore

import (
	"context"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Scan reads the columns of the current row.
type Scan func(dest ...any) error

// Stmt is one statement, with what becomes of its answer.
type Stmt struct {
	// Query is written with the marks of the package comment, unless Native is set: then it goes to the driver as it is, and so do Args.
	Query  string
	Native bool
	// Set is what {rows} stands for; List what {list} stands for.
	Set  *Set
	List *List
	Args []any
	// Row is called for each row that comes back. Nil where none is expected.
	Row func(Scan) error
	// Changed is the number of rows that the statement changed, once it has run (zero where Row is set). Ran reports that it has.
	Changed int64
	Ran     bool
}

// Set is a table of arguments.
type Set struct {
	// Types are the columns' types: text, bytes, int, time, later.
	Types []string
	Rows  [][]any
}

// List is a column of arguments.
type List struct {
	Type   string
	Values []any
}

// Later is an argument of {later}: a duration from now on, by the store's clock.
type Later time.Duration

// Length is an argument that is the length of a text, as the database's substr counts it: in characters, or in bytes where keys are bytes.
type Length string

// Sender sends statements to one database. Safe for concurrent use.
type Sender interface {
	// Do runs the statements in order, all or nothing, in a transaction of its own.
	Do(ctx context.Context, stmts ...*Stmt) error
	// Read runs statements that only read.
	Read(ctx context.Context, stmts ...*Stmt) error
	// Begin opens a transaction.
	Begin(ctx context.Context, opts keystore.TxOptions) (Session, error)
}

// Session is one open transaction, used by one goroutine at a time.
type Session interface {
	// Send runs statements in order.
	Send(ctx context.Context, stmts ...*Stmt) error
	// Commit runs the statements and commits. An error that leaves open whether the commit took place wraps
	// keystore.ErrOutcomeUnknown; on any other error nothing was committed.
	Commit(ctx context.Context, stmts ...*Stmt) error
	// Rollback is safe after Commit and twice.
	Rollback() error
	// SQL is the handle for business statements.
	SQL() *sqlx.Tx
}

// Dialect is what differs between databases.
type Dialect interface {
	// Name is the folder of the migrations: postgres, sqlite, mysql.
	Name() string
	// Bind turns a statement's query and arguments into what the driver takes.
	Bind(s *Stmt) (query string, args []any)
	// Classify is keystore.Store's.
	Classify(err error) keystore.Fault
	// Unique reports that err is a violated unique index.
	Unique(err error) bool
}
