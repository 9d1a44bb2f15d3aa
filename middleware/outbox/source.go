package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrLaneLost is returned by Source methods when the lane's token is not the current
// one any more: another relay owns the lane and nothing was changed.
var ErrLaneLost = errors.New("outbox: lane lost to another relay")

// Lanes is the number of lanes of an outbox. A record's lane is a hash of its ordering
// key, or of its UUID where it has none, so one ordering key stays in one lane.
const Lanes = 16

// Lane is a leased lane. Token fences its owner: every change that a relay makes
// names it, and fails with ErrLaneLost once somebody else holds the lane.
type Lane struct {
	Number int
	Token  string
}

// Source is the relay's side of an outbox. Implementations are safe for concurrent use.
// Time is the store's clock.
type Source interface {
	// AcquireLanes gives owner its fair share of lanes: lanes that it holds already are
	// renewed for lease and keep their token, free or expired ones are taken with a new
	// token, and lanes beyond the fair share (Lanes divided by the live owners, rounded
	// up) are given up. It returns all lanes that owner now holds.
	AcquireLanes(ctx context.Context, owner string, lease time.Duration) ([]Lane, error)

	// ReleaseLanes gives up all lanes of owner at once, so that others need not wait for the lease.
	ReleaseLanes(ctx context.Context, owner string) error

	// Fetch returns up to limit due records of the lane in the order of their ids. It
	// skips records that are set aside, that are not due, that wait for their next
	// attempt, and every record that stands behind one waiting for its next attempt
	// with the same ordering key. It never skips a record because a later id was seen:
	// what commits late is found late.
	Fetch(ctx context.Context, lane Lane, limit int) ([]Record, error)

	// Done removes records that the broker confirmed and routed.
	Done(ctx context.Context, lane Lane, ids []int64) error

	// Failed notes failures: attempts grow by one (unless the failure is uncounted), and the record waits for
	// RetryIn, or is set aside.
	Failed(ctx context.Context, lane Lane, failures []Failure) error

	// Wake returns a channel that gets a value (without blocking the sender, coalesced)
	// when records may have become due: after a commit in this process, and where the
	// database can tell, of another process. Polling stays the truth.
	Wake() <-chan struct{}

	// Status counts the outbox for people and metrics.
	Status(ctx context.Context) (Status, error)

	// List returns records for people: set-aside ones only, or all, oldest first.
	List(ctx context.Context, asideOnly bool, limit int) ([]Record, error)

	// Retry makes set-aside records due again with no attempts counted: those of ids,
	// or all when ids is empty. It returns how many.
	Retry(ctx context.Context, ids []int64) (int, error)

	// Drop deletes set-aside records for good and returns how many.
	Drop(ctx context.Context, ids []int64) (int, error)
}

// Failure is one record that could not be published.
type Failure struct {
	ID      int64
	Reason  string // at most 1 KiB is kept
	RetryIn time.Duration
	Aside   bool
	// Uncounted leaves the record's attempts as they are: the failure was the broker's, not the record's.
	Uncounted bool
}

// Status is the state of an outbox at one moment.
type Status struct {
	Pending int64
	Delayed int64 // deliver-at lies ahead
	Aside   int64
	// OldestAge is the age of the oldest pending record that is due; zero where there is none.
	OldestAge time.Duration
}

// Publisher hands records' messages to a broker.
type Publisher interface {
	// PublishBatch publishes msgs to the logical topic, pipelined, and returns one error
	// for each message, nil where the broker has the message durably and routed it to at
	// least one queue, stream or log. It returns when all outcomes are known or ctx ends.
	PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error
}
