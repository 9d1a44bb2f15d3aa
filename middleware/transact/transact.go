// Package transact is the contract of work in a broker's own transactions: consumed positions, produced messages and
// the keys of what was handled commit together, in the broker, or not at all. It is for handlers that turn
// messages into messages; nothing else is part of such a transaction.
package transact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

var (
	// ErrStopping says that the shard gives out no more messages: it is being taken away, or its source stops.
	ErrStopping = errors.New("transact: the shard is stopping")
	// ErrLost says that the shard has another owner, or may have: nothing of the batch is visible, or all of it was committed, and the next
	// owner knows which.
	ErrLost = errors.New("transact: the shard is lost")
)

// Refused is the error of a commit of which the broker refuses one output for ever. Nothing was committed; the same
// batch without what led to that output can be.
type Refused struct {
	// Output is the index in Batch.Outputs.
	Output int
	Err    error
}

func (r *Refused) Error() string {
	return fmt.Sprintf("transact: output %d is refused: %s", r.Output, r.Err)
}

func (r *Refused) Unwrap() error { return r.Err }

// Source is one binding's part of its topic. Replicas of the binding share the topic's shards; each shard has one owner
// at a time.
type Source interface {
	// Start begins to take shards and calls work for each, in a goroutine of its own; called once. When work returns an error, the shard is given up and
	// taken again, by this replica or another, after a wait.
	Start(work Work) error
	// Drain takes no new messages, lets the batches under way commit, and gives the shards back. When ctx ends before, what is left
	// is dropped uncommitted and ctx's error returned. Safe to call twice and before Start.
	Drain(ctx context.Context) error
	// Consuming returns nil while this replica has its place among the owners, else why not.
	Consuming() error
	// CaughtUp is closed when everything that stood in the topic at Start is committed, by this or another replica.
	CaughtUp() <-chan struct{}
}

// Work handles the messages of one shard until the shard stops. ctx ends when the shard is lost, or when a stop takes too long: what is
// not committed then never will be.
type Work func(ctx context.Context, shard Shard) error

// Shard is one part of a topic with its keys, owned by this process. It is used by one goroutine.
type Shard interface {
	// Name names the shard within its topic, the same for every owner: a partition's number.
	Name() string
	// Next returns the next message, in the shard's order, or nil when none came within wait. It returns ErrStopping when there will be no more.
	Next(wait time.Duration) (*message.Message, error)
	// Stopping is closed when nothing new should be begun.
	Stopping() <-chan struct{}
	// Lookup returns what is known of a key.
	Lookup(key string) (Entry, bool)
	// Check returns an error when a message to topic would be refused: outbox.ErrUnpublishable or outbox.ErrUnroutable where it never can
	// be published, or not at present.
	Check(ctx context.Context, topic string, msg *message.Message) error
	// Commit commits the batch together with the position behind the last message that Next returned. When there is nothing to commit it may remove expired keys. After
	// an error that is no *Refused the shard is of no use any more.
	Commit(ctx context.Context, batch Batch) error
}

// State of a key.
type State string

// States of a key.
const (
	Completed State = "completed" // its outputs are committed
	Failed    State = "failed"    // its dead letter exists
)

// Entry is what is known of a key.
type Entry struct {
	State       State
	Fingerprint string
}

// Key is a key to be kept.
type Key struct {
	Key string
	Entry
}

// Output is a message to be published.
type Output struct {
	Topic   string
	Message *message.Message
}

// Batch is what commits at once.
type Batch struct {
	Outputs []Output
	Keys    []Key
}
