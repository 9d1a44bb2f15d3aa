package keystore

import "errors"

// Errors of a Store.
var (
	// ErrOutcomeUnknown is wrapped by Tx.Commit when the connection broke while the commit was on its way.
	ErrOutcomeUnknown = errors.New("keystore: outcome of the commit is unknown")
	// ErrLeaseLost is returned to a holder whose token is not the key's any more; nothing was changed.
	ErrLeaseLost = errors.New("keystore: lease lost")
	// ErrNotInDoubt is returned by Resolve.
	ErrNotInDoubt = errors.New("keystore: the key is not in doubt")
	// ErrNotFound is returned when the store does not know the key.
	ErrNotFound = errors.New("keystore: no such key")
	// ErrResultTooLarge is returned by Commit for a result over MaxResult bytes.
	ErrResultTooLarge = errors.New("keystore: result too large to be stored")
)

// Fault is the kind of a driver's error, as far as the engine must know it.
type Fault int

// Kinds of faults.
const (
	// FaultOther: the statement itself failed; the same statement would fail again.
	FaultOther Fault = iota
	// FaultContention: a deadlock, a serialization failure, a lock timeout, a busy database: a fresh transaction may succeed at once.
	FaultContention
	// FaultUnavailable: the connection or the server failed; no statement would succeed now.
	FaultUnavailable
)
