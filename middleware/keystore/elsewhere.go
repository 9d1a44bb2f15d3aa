package keystore

import (
	"context"
	"time"
)

// Elsewhere is a store of keys that is not the database of the effects, such as Redis or DynamoDB. The database stays the truth: every
// effect's transaction inserts its key there too. What is kept elsewhere serves two ends.
//
// A lease, for handlers whose effect lies outside the database: the steps of Leasing, each atomic for one key and guarded by its token.
//
// A positive hint, for every handler: a key that is completed here, in the database's present epoch, is certainly completed there, and its
// copy needs no transaction. An absent one says nothing.
//
// So a completed key with another epoch than the claim's is as absent: Acquire takes it, Note replaces it. A key in progress never is: it
// has no end of its own, however long its lease is over, until somebody takes it over and completes or releases it. A completed key goes when
// its retention is over. Safe for concurrent use.
type Elsewhere interface {
	Leasing
	// Peek returns the keys as they stand, in the order of ids, without claiming anything; an absent key has State Absent.
	Peek(ctx context.Context, ids []ID) ([]Record, error)
	// Note remembers that keys are completed, as completions say: key, fingerprint and epoch of the claim, result, owner and retention. A
	// key in progress, or completed in the same epoch, stays as it is.
	Note(ctx context.Context, completions []Completion) error
	// Classify says what kind of failure an error of this store is.
	Classify(err error) Fault
	Capabilities() Capabilities
}

// Epochs names the eras of a database. Whatever makes the database forget a key that it had completed begins a new one: a
// failover or a restore that the database can tell, a key that a person forgets, a person's word. No name comes twice.
type Epochs interface {
	// Epoch returns the name of the present epoch, read from the database now. It begins a new one where the server or its timeline is not
	// the one of before.
	Epoch(ctx context.Context) (string, error)
	// RaiseEpoch begins a new epoch and returns its name.
	RaiseEpoch(ctx context.Context, by, why string) (string, error)
}

// EpochTrust is how long a name that Epoch returned may be used, counted from before the question. Who makes the database
// forget a key waits as long before the key counts as forgotten.
const EpochTrust = 3 * time.Second
