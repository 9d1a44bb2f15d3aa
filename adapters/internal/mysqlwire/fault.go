package mysqlwire

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Numbers of errors; see the error reference of MySQL's and MariaDB's manuals.
const (
	UnknownDatabase = 1049
	LockWaitTimeout = 1205
	LockDeadlock    = 1213
	ServerReadOnly  = 1290
)

// faults are the errors after which a fresh transaction may succeed at once, and those after which nothing would.
var faults = map[uint16]keystore.Fault{
	1020:            keystore.FaultContention, // the row has changed since it was read: MariaDB with innodb_snapshot_isolation
	LockWaitTimeout: keystore.FaultContention,
	1206:            keystore.FaultContention, // the table of locks is full
	LockDeadlock:    keystore.FaultContention,
	1317:            keystore.FaultContention, // KILL QUERY
	1412:            keystore.FaultContention, // the table was altered meanwhile
	1614:            keystore.FaultContention, // XA deadlock
	1615:            keystore.FaultContention, // prepare again
	3058:            keystore.FaultContention, // deadlock of user locks
	3572:            keystore.FaultContention, // NOWAIT

	1021: keystore.FaultUnavailable, // disk full
	1037: keystore.FaultUnavailable, // out of memory
	1040: keystore.FaultUnavailable, // too many connections
	1041: keystore.FaultUnavailable, // out of resources
	1043: keystore.FaultUnavailable, // bad handshake
	1047: keystore.FaultUnavailable, // the node of a Galera cluster is not ready
	1053: keystore.FaultUnavailable, // shutdown
	1077: keystore.FaultUnavailable, // normal shutdown
	1079: keystore.FaultUnavailable, // shutdown complete
	1080: keystore.FaultUnavailable, // forced close of a connection
	1114: keystore.FaultUnavailable, // no room for the table
	1129: keystore.FaultUnavailable, // host is blocked
	1152: keystore.FaultUnavailable, // connection aborted
	1158: keystore.FaultUnavailable, // reading packets
	1159: keystore.FaultUnavailable, // timeout of it
	1160: keystore.FaultUnavailable, // writing packets
	1161: keystore.FaultUnavailable, // timeout of it
	1184: keystore.FaultUnavailable, // connection aborted
	1203: keystore.FaultUnavailable, // too many connections of the user
	1226: keystore.FaultUnavailable, // a resource of the user is used up
	1927: keystore.FaultUnavailable, // connection killed (MariaDB)
	2002: keystore.FaultUnavailable,
	2003: keystore.FaultUnavailable,
	2006: keystore.FaultUnavailable, // server has gone away
	2013: keystore.FaultUnavailable, // connection lost
	3169: keystore.FaultUnavailable, // session killed (MySQL)
	4031: keystore.FaultUnavailable, // idle for too long (MySQL)

	// A replica that was the primary until now.
	ServerReadOnly: keystore.FaultUnavailable,
	1836:           keystore.FaultUnavailable,
}

// Number is the number of the server's error in err, or 0.
func Number(err error) uint16 {
	var said *mysql.MySQLError
	if !errors.As(err, &said) {
		return 0
	}
	return said.Number
}

// Fault says what an error of the driver means. A statement's error that no fresh transaction mends is FaultOther, as is an ended context.
func Fault(err error) keystore.Fault {
	var connecting ConnectError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return keystore.FaultOther
	case errors.As(err, &connecting):
		return keystore.FaultUnavailable
	case Number(err) != 0:
		return faults[Number(err)]
	case errors.Is(err, context.DeadlineExceeded):
		return keystore.FaultOther
	case broken(err):
		return keystore.FaultUnavailable
	}
	return keystore.FaultOther
}

// Contended reports that the server refused for a rival's sake, and that a new transaction may succeed.
func Contended(err error) bool { return Fault(err) == keystore.FaultContention }

// Unavailable reports that the connection or the server failed, not a statement.
func Unavailable(err error) bool { return Fault(err) == keystore.FaultUnavailable }

// ConnectError is the failure to open a connection.
type ConnectError struct{ Err error }

// Error is that of the driver.
func (e ConnectError) Error() string { return e.Err.Error() }

// Unwrap returns the driver's error.
func (e ConnectError) Unwrap() error { return e.Err }

// broken reports that the connection, not a statement, failed.
func broken(err error) bool {
	var network net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, mysql.ErrInvalidConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &network)
}
