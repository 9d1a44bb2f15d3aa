package pgstore

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/adapters/internal/pgwire"
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
	case pgwire.Broken(err):
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
