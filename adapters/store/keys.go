package store

import (
	"context"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// KeysFactory makes the store of keys of one name, where keys are kept elsewhere than in the database.
type KeysFactory struct {
	// Name is what --keys takes.
	Name string
	// Open makes the store. A server that does not answer is no error: Ping says so, and what could not be asked of it is a caveat. decode
	// and the errors are as broker.Factory's.
	Open func(ctx context.Context, decode func(any) error, opts Options) (Keys, error)
	// Check validates the adapter's configuration without any connection.
	Check func(decode func(any) error) error
}

// Keys is one open store of keys elsewhere. Safe for concurrent use.
type Keys interface {
	keystore.Elsewhere

	// Ping returns nil when the store answers now.
	Ping(ctx context.Context) error
	// Close is safe to call twice.
	Close() error
}
