// Package parking keeps messages that have left their broker without being finished:
// they wait for a retry, are dead letters, or are in doubt. It is one place and one
// format on every broker. A message's source is acked only after its row is durable, and a
// row is removed in the transaction of its effect.
package parking

import (
	"context"
	"errors"
	"time"
)

// State of a parked row.
type State string

// States of a parked row.
const (
	Waiting State = "waiting"  // a retry is due later
	Dead    State = "dead"     // a dead letter
	InDoubt State = "in_doubt" // an outside effect may or may not have happened
)

// Errors of a Store.
var (
	// ErrLeaseLost is returned when a row's lease belongs to somebody else by now, or the row is gone.
	ErrLeaseLost = errors.New("parking: lease lost")
	// ErrNotFound is returned when no row has the id.
	ErrNotFound = errors.New("parking: no such row")
)

// Row is a parked message. Body, headers, key and error are bytes: stores keep them as they are.
type Row struct {
	ID    int64
	State State

	// Scope is the binding's full scope; Topic the logical topic that the message came from.
	Scope string
	Topic string

	UUID        string
	Key         string // as received; may break the contract's rules in a dead letter about its key
	OrderingKey string
	Fingerprint string // "" where none was taken
	Payload     []byte
	Metadata    map[string]string

	// Reason is the constant code of why the message is here, such as "payload-mismatch",
	// "panic", "attempts-exhausted"; Class is the failure's class; Error its text, cut to 2 KiB.
	Reason string
	Class  string
	Error  string

	Attempts int
	// Holds keeps later messages of the same ordering key behind this dead or in-doubt row.
	Holds bool
	// Redriven marks a waiting row that a person sent back: it may replace its own failed key.
	Redriven bool

	// DueIn is, on writing a waiting row, how long from now (the store's clock) it waits.
	DueIn time.Duration

	// Set by the store.
	DueAt   time.Time
	FirstAt time.Time // when the message was first parked
	LastAt  time.Time // when the row last changed
	History []Action  // what people did to it
}

// Action records what a person did to a row, who and why.
type Action struct {
	At   time.Time `json:"at"`
	What string    `json:"what"` // redrive, resolve, drop
	By   string    `json:"by"`
	Why  string    `json:"why,omitempty"`
}

// Lease names a leased row and fences its holder.
type Lease struct {
	ID    int64
	Token string
}

// Leased is a row with its lease.
type Leased struct {
	Row
	Lease Lease
	// Suspect reports that an earlier lease of the row ended by time, without being given back: its holder may have died of it.
	Suspect bool
}

// Store keeps parked rows. Implementations are safe for concurrent use; time is the store's clock.
//
// Uniqueness: there is at most one row of a state in {waiting, in_doubt} for a (scope,
// key, fingerprint) with a non-empty key, and at most one dead row for a (scope, key,
// fingerprint, reason); for an empty key the UUID takes the key's place. Parking what is there
// already changes only attempts, error, last time (a waiting row keeps the later due time) and is no error.
type Store interface {
	// Park writes rows in one transaction. Rows that share an ordering key keep the order of the slice.
	Park(ctx context.Context, rows []Row) error

	// LeaseDue leases up to limit waiting rows that are due, for bindings whose scope is in
	// scopes, for the time lease. Of the rows that share (scope, ordering key) only the oldest may be leased,
	// and none while an older row of the key waits, is leased, or holds. It locks no row after it returns.
	LeaseDue(ctx context.Context, scopes []string, limit int, lease time.Duration) ([]Leased, error)

	// Extend prolongs a lease from now on, or returns ErrLeaseLost.
	Extend(ctx context.Context, l Lease, lease time.Duration) error

	// Postpone gives a leased row back: it waits for due, with the attempts, reason, class and error of
	// change. It returns ErrLeaseLost if the lease is not held any more.
	Postpone(ctx context.Context, l Lease, due time.Duration, change Row) error

	// Release gives a leased row back as it was, due at once. A lost lease is no error.
	Release(ctx context.Context, l Lease) error

	// NextDue returns how long until the earliest waiting row of scopes is due (zero or less: now), and false where none waits.
	NextDue(ctx context.Context, scopes []string) (time.Duration, bool, error)

	Desk
}

// Desk is what people do with parked rows.
type Desk interface {
	// List returns rows by filter, oldest first.
	List(ctx context.Context, f Filter) ([]Row, error)
	// Get returns one row, or ErrNotFound.
	Get(ctx context.Context, id int64) (Row, error)
	// Redrive marks a dead row as waiting, due now and Redriven, so that it runs again in its own binding only. asKey, where
	// not empty, replaces the key. It returns ErrNotFound, or a *Refusal where the key's effect is completed already
	// (and asKey is empty).
	Redrive(ctx context.Context, id int64, asKey string, act Action) error
	// Drop deletes a dead row for good. The key keeps its state. ErrNotFound where there is no dead row of that id.
	Drop(ctx context.Context, id int64, act Action) error
	// Counts returns the number of rows for each scope and state.
	Counts(ctx context.Context) ([]Count, error)
	// Prune deletes up to limit dead rows that last changed longer ago than retention, and returns how many.
	Prune(ctx context.Context, retention time.Duration, limit int) (int, error)
}

// Filter selects rows. Zero fields select everything.
type Filter struct {
	States  []State
	Scope   string
	Reason  string
	Key     string
	Since   time.Duration // last changed no longer ago than this
	AfterID int64
	Limit   int // 0: 100
}

// Count is the number of rows of one scope and state.
type Count struct {
	Scope string
	State State
	Rows  int64
	// OldestAge is the age of the row parked first.
	OldestAge time.Duration
}

// Refusal is the error of an action that would break a promise. Its text says why and what to do instead.
type Refusal struct{ Why string }

func (r *Refusal) Error() string { return r.Why }
