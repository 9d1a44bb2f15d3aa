package mysqlstore

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
	"github.com/oncemill/oncemill/adapters/internal/sqlcore"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Numbers of errors; see the error reference of MySQL's and MariaDB's manuals.
const (
	duplicateEntry        = 1062
	duplicateEntryWithKey = 1586
	readOnlyTransaction   = 1792
)

func (dialect) Classify(err error) keystore.Fault {
	fault := mysqlwire.Fault(err)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if fault == keystore.FaultOther && !ended && mysqlwire.Number(err) == 0 && sqlcore.Contended(err) {
		return keystore.FaultContention
	}
	return fault
}

func (dialect) Unique(err error) bool {
	number := mysqlwire.Number(err)
	return number == duplicateEntry || number == duplicateEntryWithKey
}

// undone reports that a COMMIT that failed with err has surely not taken place: it was not sent, or the server rolled back and said so.
func undone(err error) bool {
	if errors.Is(err, errEnded) || errors.Is(err, driver.ErrBadConn) {
		return true
	}
	switch mysqlwire.Number(err) {
	case mysqlwire.LockDeadlock, mysqlwire.LockWaitTimeout, mysqlwire.ServerReadOnly, readOnlyTransaction:
		return true
	}
	return false
}
