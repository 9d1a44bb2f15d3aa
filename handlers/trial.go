package handlers

import (
	"context"

	"github.com/jmoiron/sqlx"
)

// Trial is what "oncemill prove" plays of a plugin: it sends the plugin's messages over the configured broker, breaks the
// replicas that handle them at every step, and then asks whether the database is as if each message had taken effect once.
type Trial struct {
	// Payload returns the payload of the nth message to a binding: a []byte as it is, or anything that becomes JSON. It depends on nothing
	// else, because a message is sent again, and every message can succeed on its own. nil is a binding that receives
	// only what other handlers publish.
	Payload func(binding string, n int) any
	// Check returns an error where the tables are not what the messages in handled leave when each of them took effect exactly once. It is
	// called when nothing runs any more.
	Check func(ctx context.Context, db *sqlx.DB, handled []Handled) error
}

// Handled is a message of a trial whose key is completed.
type Handled struct {
	Binding string
	N       int
	Key     string
}
