// Package pgwire is what the adapters of PostgreSQL share: how its client says that a connection, and not a statement, failed.
package pgwire

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Broken reports that the connection, not a statement, failed: none could be made, or it ended.
func Broken(err error) bool {
	var network net.Error
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}
