package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// errEnded is a statement in a transaction that the server has ended. Run all the same it would commit by itself.
var errEnded = errors.New("the transaction is over: an earlier statement of it failed and rolled it back")

// connector opens connections as the store needs them, by the connection string as it is now.
type connector struct {
	configure func() (*mysql.Config, error)
	lockWait  time.Duration
	optional  bool // connect without the database where it is missing, so that a migration can make it
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	cfg, err := c.configure()
	if err != nil {
		return nil, err
	}
	inner, err := dial(ctx, cfg)
	homeless := false
	if c.optional && mysqlwire.Number(err) == mysqlwire.UnknownDatabase {
		homeless, cfg.DBName = true, ""
		inner, err = dial(ctx, cfg)
	}
	if err != nil {
		return nil, mysqlwire.ConnectError{Err: err}
	}
	opened := &conn{mysqlConn: inner, homeless: homeless}
	if err := opened.setUp(ctx, c.lockWait); err != nil {
		return nil, mysqlwire.ConnectError{Err: errors.Join(fmt.Errorf("set up the session: %w", err), inner.Close())}
	}
	return opened, nil
}

func dial(ctx context.Context, cfg *mysql.Config) (mysqlConn, error) {
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, mysqlwire.ErrDSN
	}
	inner, err := base.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return inner.(mysqlConn), nil
}

// mysqlConn is what the driver's connections implement.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// conn is used by one goroutine at a time, as database/sql promises.
type conn struct {
	mysqlConn
	homeless bool // it has no database
	lockWait int64
	tx       *tx // that is open here
}

// sessionSettings are independent of the server's defaults. Strict mode refuses a value that does not fit, where MySQL would cut it.
const sessionSettings = `SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES')`

// setUp gives a session the settings that the store depends on.
func (c *conn) setUp(ctx context.Context, lockWait time.Duration) error {
	c.lockWait = wholeSeconds(lockWait)
	for _, query := range []string{
		sessionSettings + `, innodb_lock_wait_timeout = ` + strconv.FormatInt(c.lockWait, 10),
		`SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`,
	} {
		if _, err := c.mysqlConn.ExecContext(ctx, query, nil); err != nil {
			return err
		}
	}
	return nil
}

// wholeSeconds is how long the server can wait: one second at least.
func wholeSeconds(d time.Duration) int64 { return max(int64((d+time.Second-1)/time.Second), 1) }

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return !c.homeless && c.mysqlConn.IsValid() }

// terms are what the store asks of a transaction, beyond database/sql's options.
type terms struct {
	lockWait time.Duration
	// commit is the context of COMMIT, for which database/sql has none.
	commit atomic.Pointer[context.Context]
}

type termsKey struct{}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	asked, _ := ctx.Value(termsKey{}).(*terms)
	if asked != nil {
		if err := c.waitAtMost(ctx, wholeSeconds(asked.lockWait)); err != nil {
			return nil, err
		}
	}
	if sql.IsolationLevel(opts.Isolation) == sql.LevelReadCommitted {
		opts.Isolation = 0 // that of the session
	}
	inner, err := c.mysqlConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	c.tx = &tx{conn: c, inner: inner, terms: asked}
	return c.tx, nil
}

// waitAtMost bounds the waits for locks, where the session has another bound.
func (c *conn) waitAtMost(ctx context.Context, seconds int64) error {
	if seconds == c.lockWait {
		return nil
	}
	_, err := c.mysqlConn.ExecContext(ctx, `SET SESSION innodb_lock_wait_timeout = `+strconv.FormatInt(seconds, 10), nil)
	if err == nil {
		c.lockWait = seconds
	}
	return err
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.refuse(query); err != nil {
		return nil, err
	}
	result, err := c.mysqlConn.ExecContext(ctx, query, args)
	return result, c.note(err)
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.refuse(query); err != nil {
		return nil, err
	}
	found, err := c.mysqlConn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, c.note(err)
	}
	return noted(c, found), nil
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if err := c.refuse(query); err != nil {
		return nil, err
	}
	inner, err := c.mysqlConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, c.note(err)
	}
	return &stmt{mysqlStmt: inner.(mysqlStmt), conn: c}, nil
}

// refuse keeps a statement out of a transaction that is over, and one that would end it: then what follows would not be undone with it.
func (c *conn) refuse(query string) error {
	if c.tx == nil {
		return nil
	}
	if err := c.tx.over; err != nil {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	if word := firstWord(query); c.tx.terms != nil && ending[word] {
		return fmt.Errorf("%s ends the transaction, which is the store's to end: run it elsewhere", word)
	}
	return nil
}

// ending are the statements that commit or roll back what is open.
var ending = map[string]bool{
	"ALTER": true, "ANALYZE": true, "BEGIN": true, "CACHE": true, "COMMIT": true, "CREATE": true, "DROP": true, "FLUSH": true,
	"GRANT": true, "INSTALL": true, "LOCK": true, "OPTIMIZE": true, "RENAME": true, "REPAIR": true, "RESET": true, "REVOKE": true,
	"START": true, "TRUNCATE": true, "UNINSTALL": true, "UNLOCK": true, "XA": true,
}

func firstWord(query string) string {
	query = strings.TrimLeft(query, " \t\r\n(")
	end := strings.IndexFunc(query, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
	if end >= 0 {
		query = query[:end]
	}
	return strings.ToUpper(query)
}

// note remembers an error with which the server may have rolled the transaction back; a further statement would commit by itself.
func (c *conn) note(err error) error {
	var said *mysql.MySQLError
	if c.tx != nil && errors.As(err, &said) && mysqlwire.Fault(said) != keystore.FaultOther {
		c.tx.over = err
	}
	return err
}

// tx is a transaction of the connection.
type tx struct {
	conn  *conn
	inner driver.Tx
	terms *terms // nil where it is not the store's
	over  error  // why the server ended it
}

// Commit implements driver.Tx.
func (t *tx) Commit() error {
	t.conn.tx = nil
	if t.over != nil {
		return errors.Join(fmt.Errorf("%w: %w", errEnded, t.over), t.inner.Rollback())
	}
	ctx := context.Background()
	if t.terms != nil {
		if asked := t.terms.commit.Load(); asked != nil {
			ctx = *asked
		}
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errEnded, err), t.inner.Rollback())
	}
	_, err := t.conn.mysqlConn.ExecContext(ctx, "COMMIT", nil)
	return err
}

// Rollback implements driver.Tx.
func (t *tx) Rollback() error {
	t.conn.tx = nil
	return t.inner.Rollback()
}

// number asks for one whole number, on a connection that no pool has.
func (c *conn) number(ctx context.Context, query string) (int64, error) {
	answer, err := c.mysqlConn.QueryContext(ctx, query, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Close() }()
	value := make([]driver.Value, 1)
	if err := answer.Next(value); err != nil {
		return 0, err
	}
	n, ok := value[0].(int64)
	if !ok {
		return 0, fmt.Errorf("the server answered %T, not a number", value[0])
	}
	return n, nil
}
