// Package keystore is the contract of a store of idempotency keys: claim, run,
// complete, several messages in one call. A claim is an insert, never a look-up. Time
// is always the store's clock.
//
// A store that shares its database with the business data is Transactional: claim, business
// rows, result, outgoing and parked messages commit together. Every store is Leasing: a key is
// held by an owner with a fencing token, for handlers whose effect lies outside the database.
package keystore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// State of a key.
type State string

// States of a key. Absent is never stored: the key was never seen, was rolled back, or was removed after its retention.
const (
	Absent     State = ""
	InProgress State = "in_progress"
	Completed  State = "completed"
	Failed     State = "failed"
	InDoubt    State = "in_doubt"
)

// ID names a key: two bindings never share one. Keys compare byte by byte.
type ID struct {
	Scope string
	Key   string
}

// Claim asks for a key.
type Claim struct {
	ID
	// Fingerprint is kind, version and digest of the payload; "" where the binding takes none, which matches everything.
	Fingerprint string
	// OrderingKey, where not empty, makes the claim look for parked predecessors.
	OrderingKey string
	// Token, where not empty, claims nothing new: it asks whether the lease with this
	// token is still the key's, and locks the key until the transaction ends.
	Token string
	// Parked is the row that is being run, for a message that comes from parking: the row does not stand in its own way.
	Parked *parking.Lease
	// Redriven lets the claim replace a failed key of the same fingerprint when it commits; until
	// then the key stays failed.
	Redriven bool
	// Retention and Owner, where given, are what the completion is expected to bring. A store may then write the key at the claim
	// as it will most likely be, and write less when it commits. They promise nothing.
	Retention time.Duration
	Owner     string
	// Held says that the caller holds the key's lease in a store elsewhere: the transaction takes the key whatever is parked.
	Held bool
	// Epoch is the database's, for stores elsewhere; a completed key of another one is as absent. The database itself takes no notice.
	Epoch string
}

// Outcome is the store's answer to a claim.
type Outcome string

// Outcomes of a claim.
const (
	// Fresh: the key is the caller's, run the handler.
	Fresh Outcome = "fresh"
	// TakenOver: an earlier owner's lease is over; the key is the caller's, but an earlier call may have had its effect.
	TakenOver Outcome = "taken_over"
	// Duplicate: completed before with the same fingerprint; the record has the result.
	Duplicate Outcome = "duplicate"
	// Rejected: failed before with the same fingerprint; its dead letter exists.
	Rejected Outcome = "rejected"
	// Doubtful: the key is in doubt, its parked row exists.
	Doubtful Outcome = "doubtful"
	// Busy: another owner holds a live lease; Record.LeaseLeft says for how long.
	Busy Outcome = "busy"
	// Mismatch: the key exists, in any state, with another fingerprint; or a waiting parked row of the key has another one.
	Mismatch Outcome = "mismatch"
	// Waits: a parked row of this very key and fingerprint waits for its retry, so this copy is not needed.
	Waits Outcome = "waits"
	// Behind: an older parked row of the same ordering key waits or holds; the message belongs behind it.
	Behind Outcome = "behind"
	// Lost: the claim had a token and the lease is not its holder's any more.
	Lost Outcome = "lost"
)

// Verdict is the answer to one claim, with what the store knows of the key.
type Verdict struct {
	Outcome Outcome
	Record  Record
	// Token fences the holder of a lease (Acquire only).
	Token string
}

// Record is a key as it stands in the store.
type Record struct {
	ID
	State       State
	Fingerprint string
	Result      json.RawMessage // nil where there is none
	Owner       string
	ProcessedAt time.Time
	ExpiresAt   time.Time // the key is kept at least so long; zero while it is not completed
	LeaseLeft   time.Duration
	Takeovers   int
	FirstAt     time.Time // when the key was first claimed by a lease
	Epoch       string    // of a completed key in a store elsewhere
}

// Completion is what becomes of one message when the transaction commits.
type Completion struct {
	// Claim is the claim that the transaction made; its zero value where the message has no valid key.
	Claim Claim
	// State is what the key becomes: Completed, Failed, InDoubt, or Absent, which leaves no key behind for a claim that was fresh or leased.
	State State
	// Keep leaves the key untouched (a mismatch, a message behind another): only rows are written. State is ignored.
	Keep bool
	// Result is stored with the key; at most MaxResult bytes.
	Result json.RawMessage
	// Retention is how long the key is kept from now on.
	Retention time.Duration
	// Outbox are the messages that leave with the effect, in order.
	Outbox []outbox.Record
	// KeepOutputs keeps a copy of Outbox with a key that becomes Completed, for as long as the key is kept, so that the same messages can be sent again.
	KeepOutputs bool
	// Park is the row to write, where the message is parked; the row of Settles is replaced by it.
	Park *parking.Row
	// Settles is the parked row that this message came from; it is removed (or replaced by Park) if its lease still holds, else Commit
	// fails with parking.ErrLeaseLost.
	Settles *parking.Lease
	// Owner is written with the key, for people.
	Owner string
}

// MaxResult is the largest result in bytes that is stored with a key.
const MaxResult = 64 << 10

// TxOptions set up a transaction.
type TxOptions struct {
	// Isolation is "", "read committed", "repeatable read" or "serializable". Claims need read
	// committed semantics: under the stricter two a rival's commit is a contention error and a fresh transaction helps.
	Isolation string
	// LockTimeout bounds each wait for a rival's lock; 0 is the store's default (a few seconds).
	LockTimeout time.Duration
}

// Transactional is a store whose claims live in the transaction of the business change.
type Transactional interface {
	// Begin opens a transaction. It ends with Commit or Rollback, or by itself when ctx ends.
	Begin(ctx context.Context, opts TxOptions) (Tx, error)
}

// Tx is one open transaction over a group of messages. It is used by one goroutine at a time.
type Tx interface {
	// Claim claims several keys, sorted by the store, and answers in the order of the slice. A rival's
	// uncommitted claim is waited for, at most the lock timeout (then the error is of FaultContention). Claim
	// first, business statements after: the claim's locks come before all others. Two claims of one key in one call: the
	// second is a Duplicate or Mismatch of the first.
	Claim(ctx context.Context, claims []Claim) ([]Verdict, error)

	// Outputs returns what the completion of a key kept by KeepOutputs, in order. kept is false where it kept nothing, and for a key that
	// is not completed or past its time: who received the messages may have forgotten them, too.
	Outputs(ctx context.Context, id ID) (records []outbox.Record, kept bool, err error)

	// SQL is the handle for business statements. Its holder never commits it and never rolls it back.
	SQL() *sqlx.Tx

	// Commit writes the completions and commits. When the connection breaks while the commit is on its way the
	// error wraps ErrOutcomeUnknown: only a new claim finds out. On any other error nothing was committed. Outgoing records wake the relay, parked rows the feeder.
	Commit(ctx context.Context, completions []Completion) error

	// Rollback undoes everything. Safe after Commit and twice.
	Rollback() error
}

// Leasing is a store that holds keys by lease, each step atomic and guarded by the token.
type Leasing interface {
	// Acquire claims keys for owner, each for the time lease, durably. Fresh and TakenOver verdicts carry a token. A lost
	// reply is harmless: owner is unique to the attempt, and the same owner asking again gets its own token back.
	Acquire(ctx context.Context, owner string, claims []Claim, lease time.Duration) ([]Verdict, error)
	// Renew prolongs a live or just expired lease from now, or returns ErrLeaseLost once somebody took it over. Renewals do not queue behind claims.
	Renew(ctx context.Context, id ID, token string, lease time.Duration) error
	// Complete ends leases without a transaction of business rows. ErrLeaseLost changes nothing.
	Complete(ctx context.Context, completions []Completion) error
	// Release gives a lease up and leaves no key behind. A lost lease is no error.
	Release(ctx context.Context, id ID, token string) error
}

// Attempts counts failures apart from the transactions that roll back.
type Attempts interface {
	// Count notes one failure (the count grows by one) and returns all failures so far.
	Count(ctx context.Context, id ID, f Failure) (int, error)
	// Suspect notes, before a run, that the message may kill its process, and returns how often it was noted
	// and not taken back, this time included.
	Suspect(ctx context.Context, id ID) (int, error)
	// Absolve takes one Suspect back: the process lived to see the end of the run.
	Absolve(ctx context.Context, id ID) error
	// Attempt returns what is known of an id; the zero value where nothing is.
	Attempt(ctx context.Context, id ID) (Attempt, error)
}

// Failure is one failed attempt.
type Failure struct {
	Class string
	Error string // cut to 2 KiB
	// RetryIn is when the next attempt is due; 0 where it follows at once or never.
	RetryIn time.Duration
}

// Attempt is the history of a key's failures.
type Attempt struct {
	Failures  int
	Suspected int
	LastClass string
	LastError string
	FirstAt   time.Time
	LastAt    time.Time
	NextAt    time.Time
}

// Desk is what people and maintenance do with keys.
type Desk interface {
	// List returns keys by filter, the latest first.
	List(ctx context.Context, f Filter) ([]Record, error)
	// Peek returns the keys as they stand, in the order of ids, without claiming or locking anything; an absent
	// key has State Absent. What is committed later is not seen: it may skip work, never permit it.
	Peek(ctx context.Context, ids []ID) ([]Record, error)
	// Lookup returns a key in every scope that knows it, also those that only have attempts.
	Lookup(ctx context.Context, key string) ([]Record, error)
	// Resolve decides a key in doubt: Completed (with result) drops its parked row, Absent makes the parked row run
	// again, Failed turns it into a dead letter. ErrNotInDoubt where the key is in another state.
	Resolve(ctx context.Context, id ID, to State, result json.RawMessage, by, why string) error
	// Forget removes a completed or failed key, so that its message would run again, and raises the epoch: what was noted elsewhere counts no
	// more, after EpochTrust at the latest. It returns a *parking.Refusal for keys in progress, in doubt or with a parked row.
	Forget(ctx context.Context, id ID, by, why string) error
	// Resend writes what a completed key has kept to the outbox again, under the same identities, and returns how many messages these
	// are. It returns ErrNotFound for an absent key, and a *parking.Refusal for one that is not completed, kept nothing, or is past its time.
	Resend(ctx context.Context, id ID, by, why string) (int, error)
	// Clean removes up to limit keys of the scope that are past their time, with their attempts, and returns how many. It never touches keys in progress or in doubt, nor a key with a parked row.
	Clean(ctx context.Context, scope string, limit int) (int, error)
	// Scopes returns every scope that has keys or parked rows, with the number of keys.
	Scopes(ctx context.Context) (map[string]int64, error)
}

// Filter selects keys. Zero fields select everything.
type Filter struct {
	Scope       string
	State       State
	Fingerprint string
	Prefix      string
	Limit       int // 0: 100
}

// Store is a store of keys in a database.
type Store interface {
	Transactional
	Leasing
	Attempts
	Desk
	Epochs
	// Classify says what kind of failure a driver's error is, also one that a handler wraps.
	Classify(err error) Fault
	Capabilities() Capabilities
}

// Capabilities is what a store promises, as data.
type Capabilities struct {
	// Transactional: claim and business change commit together.
	Transactional bool
	// Durable: a completed key survives a crash of the machine.
	Durable bool
	// Writers is the number of transactions that can write at once; 0 is no bound.
	Writers int
	// Forgets says, of a store elsewhere, what can make it lose a key in progress in ordinary operation (eviction, a restart without
	// persistence); "" where nothing does. A promise that needs such a key is refused.
	Forgets string
	// Caveats are sentences for the printed guarantees.
	Caveats []string
}
