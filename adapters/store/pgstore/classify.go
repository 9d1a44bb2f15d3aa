package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// SQLSTATE codes; see appendix A of PostgreSQL's manual.
const (
	uniqueViolation     = "23505"
	serialization       = "40001"
	deadlock            = "40P01"
	lockNotAvailable    = "55P03"
	tooManyConnections  = "53300"
	adminShutdown       = "57P01"
	crashShutdown       = "57P02"
	cannotConnectNow    = "57P03"
	idleSessionTimeout  = "57P05"
	connectionException = "08" // class
)

func (dialect) Classify(err error) keystore.Fault {
	var connecting *pgconn.ConnectError
	var said *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return keystore.FaultOther
	case errors.As(err, &connecting):
		return keystore.FaultUnavailable
	case errors.As(err, &said):
		return classifyCode(said.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return keystore.FaultOther
	case broken(err):
		return keystore.FaultUnavailable
	}
	return keystore.FaultOther
}

func classifyCode(code string) keystore.Fault {
	switch code {
	case serialization, deadlock, lockNotAvailable:
		return keystore.FaultContention
	case tooManyConnections, adminShutdown, crashShutdown, cannotConnectNow, idleSessionTimeout:
		return keystore.FaultUnavailable
	}
	if strings.HasPrefix(code, connectionException) {
		return keystore.FaultUnavailable
	}
	return keystore.FaultOther
}

// broken reports that the connection, not a statement, failed.
func broken(err error) bool {
	var network net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &network) || pgconn.SafeToRetry(err)
}

func (dialect) Unique(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && said.Code == uniqueViolation
}

// undone reports that a COMMIT that failed with err has surely not taken place: the server refused it and said so, or never saw it.
func undone(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return true
	}
	var said *pgconn.PgError
	return errors.As(err, &said) && said.SeverityUnlocalized == "ERROR"
}
