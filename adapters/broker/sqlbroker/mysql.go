package sqlbroker

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Numbers of errors; see the error reference of MySQL's and MariaDB's manuals.
const (
	noSuchTable      = 1146
	triggerExists    = 1359
	triggerForbidden = 1419 // SUPER is needed while binary logs are written
	packetTooLarge   = 1153
	badString        = 1366
	dataTooLong      = 1406
	badJSON          = 3140
	badConversion    = 3988
	checkFailed      = 4025 // MariaDB's JSON is a text with a check
)

// mysqlServer is the server interface on MySQL 8.0.19 and MariaDB 10.6, and later ones.
type mysqlServer struct {
	cfg       Config
	configure func() (*mysql.Config, error)
	db        *sql.DB
	logger    *slog.Logger

	mu    sync.Mutex
	plain map[string]bool // whether the topic's payload column is binary
	found settings
}

// settings are the server's that matter here.
type settings struct {
	version                        string
	flush, syncBinlog, foldedNames int
	binlog                         bool
}

var _ server = (*mysqlServer)(nil)

// connectMySQL opens a pool; it does not connect yet.
func connectMySQL(cfg Config, clientName string, logger *slog.Logger) (*mysqlServer, error) {
	m := &mysqlServer{cfg: cfg, logger: logger, plain: map[string]bool{}}
	m.configure = func() (*mysql.Config, error) {
		dsn, err := cfg.dsn()
		if err != nil {
			return nil, err
		}
		return cfg.mysqlConfig(dsn, clientName)
	}
	if _, err := m.configure(); err != nil {
		return nil, err
	}
	m.db = sql.OpenDB(mysqlConnector{m.configure})
	m.db.SetMaxOpenConns(cfg.MaxOpen)
	m.db.SetMaxIdleConns(cfg.MaxOpen)
	m.db.SetConnMaxIdleTime(time.Minute)
	return m, nil
}

// mysqlConnector opens connections as our statements need them, by the connection string as it is now.
type mysqlConnector struct {
	configure func() (*mysql.Config, error)
}

// Driver implements driver.Connector.
func (c mysqlConnector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// sessions are what our statements rely on: no locks on gaps, no value that is cut, and waits that end.
var sessions = []string{
	`SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_ALL_TABLES'), ` +
		`innodb_lock_wait_timeout = 20, lock_wait_timeout = 20`,
	`SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED`,
}

// Connect implements driver.Connector.
func (c mysqlConnector) Connect(ctx context.Context) (driver.Conn, error) {
	cfg, err := c.configure()
	if err != nil {
		return nil, err
	}
	base, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, mysqlwire.ErrDSN
	}
	conn, err := base.Connect(ctx)
	if err != nil {
		return nil, mysqlwire.ConnectError{Err: err}
	}
	for _, query := range sessions {
		if _, err := conn.(driver.ExecerContext).ExecContext(ctx, query, nil); err != nil {
			return nil, mysqlwire.ConnectError{Err: errors.Join(fmt.Errorf("set up the session: %w", err), conn.Close())}
		}
	}
	return conn, nil
}

func (m *mysqlServer) close() { _ = m.db.Close() }

func (m *mysqlServer) ping(ctx context.Context) error {
	var s settings
	err := m.db.QueryRowContext(ctx, `SELECT version(), @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, @@lower_case_table_names`).
		Scan(&s.version, &s.flush, &s.syncBinlog, &s.binlog, &s.foldedNames)
	if err != nil {
		return fmt.Errorf("ping MySQL: %w; check that the server runs, and dsn", err)
	}
	if !mysqlwire.Supported(s.version) {
		return fmt.Errorf("the server is %s: MySQL 8.0.19 or MariaDB 10.6 is needed", s.version)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found = s
	return nil
}

func (m *mysqlServer) keeps() (durable bool, caveats []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.found.flush != 1 {
		caveats = append(caveats, fmt.Sprintf("innodb_flush_log_at_trx_commit is %d: a crash of the database's machine loses the last messages and settlements.", m.found.flush))
	}
	if m.found.binlog && m.found.syncBinlog != 1 {
		caveats = append(caveats, fmt.Sprintf("sync_binlog is %d: a crash of the database's machine may lose the last messages and settlements.", m.found.syncBinlog))
	}
	return len(caveats) == 0, caveats
}

// notify is nothing: MySQL has no notifications.
func (m *mysqlServer) notify(context.Context, []string) error { return nil }

func (m *mysqlServer) notifies() bool { return false }

func (m *mysqlServer) listen(ctx context.Context, _ func(), _ func(string)) error {
	<-ctx.Done()
	return ctx.Err()
}

// quoted quotes the name of the topic's table, as watermill-sql names it.
func quoted(topic string) string { return "`" + messagesTable(topic) + "`" }

// classify marks err as package outbox asks.
func (m *mysqlServer) classify(err error) error {
	switch mysqlwire.Number(err) {
	case badString, dataTooLong, badJSON, badConversion, checkFailed, packetTooLarge:
		return fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: %w", outbox.ErrUnpublishable, err)
	case mysqlwire.Unavailable(err):
		return fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
	}
	return err
}

// inTx runs f in a transaction, again where a rival's stood in its way. All of it, the COMMIT too, is bounded by ctx.
func (m *mysqlServer) inTx(ctx context.Context, f func(c *sql.Conn) error) error {
	return contend(ctx, func() error { return m.tryTx(ctx, f) })
}

// attempts bounds how often a transaction that the server rolled back for a rival's sake is tried.
const attempts = 6

// contend runs a transaction, again where a rival's stood in its way.
func contend(ctx context.Context, transaction func() error) error {
	for attempt := 1; ; attempt++ {
		err := transaction()
		if err == nil || attempt == attempts || !errors.Is(err, errChanged) && !mysqlwire.Contended(err) {
			return err
		}
		if sleep(ctx, jitter(time.Duration(attempt)*10*time.Millisecond)) != nil {
			return err
		}
	}
}

func (m *mysqlServer) tryTx(ctx context.Context, f func(c *sql.Conn) error) error {
	c, err := m.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err = c.ExecContext(ctx, "START TRANSACTION"); err == nil {
		if err = f(c); err == nil {
			_, err = c.ExecContext(ctx, "COMMIT")
		}
	}
	if err != nil {
		if _, undo := c.ExecContext(ctx, "ROLLBACK"); undo != nil {
			discardConn(c)
		}
	}
	return err
}

// discardConn closes a connection whose state is not known.
func discardConn(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn })
}

// list is a table "l" with the column "place", from which a statement joins each row by its key. Given a list for IN, the optimizer
// may scan a whole table instead, and a statement that locks rows would wait for all that others have locked.
func list(all []int64) string {
	return "JSON_TABLE('[" + numbers(all) + "]', '$[*]' COLUMNS (place BIGINT PATH '$')) AS l"
}

// spans is the condition that an offset is one of those listed, which are in order: a range for each run without a gap. The server reads and
// changes a range faster than rows of a list. For single tables with FORCE INDEX only; see list.
func spans(all []int64) string {
	var out []byte
	for first := 0; first < len(all); {
		last := first
		for last+1 < len(all) && all[last+1] == all[last]+1 {
			last++
		}
		out = append(out, " OR `offset` BETWEEN "...)
		out = strconv.AppendInt(out, all[first], 10)
		out = append(out, " AND "...)
		out = strconv.AppendInt(out, all[last], 10)
		first = last + 1
	}
	return "(" + strings.TrimPrefix(string(out), " OR ") + ")"
}

// numbers writes numbers with commas between them.
func numbers(all []int64) string {
	var out []byte
	for i, n := range all {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, n, 10)
	}
	return string(out)
}

// deliveries are the listed ones of a queue.
func deliveries(all []int64) string {
	return list(all) + " STRAIGHT_JOIN oncemill_sql_deliveries d ON d.queue = ? AND d.`offset` = l.place "
}

// querierSQL is a pool or a connection.
type querierSQL interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// offsets reads a column of numbers.
func offsets(ctx context.Context, db querierSQL, query string, args ...any) ([]int64, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []int64
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, rows.Err()
}

// changed is how many rows a statement found.
func changed(ctx context.Context, db querierSQL, query string, args ...any) (int64, error) {
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
