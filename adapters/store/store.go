// Package store is the contract of a database adapter: keys, attempts, outbox and parked
// messages of one database, and its migrations.
package store

import (
	"context"
	"io/fs"
	"log/slog"
	"net"

	"github.com/jmoiron/sqlx"

	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Factory makes the database of one name.
type Factory struct {
	// Name is what --database takes.
	Name string
	// Open connects; it neither migrates nor needs tables. decode and the errors are as broker.Factory's.
	Open func(ctx context.Context, decode func(any) error, opts Options) (Store, error)
	// Check validates the adapter's configuration without any connection.
	Check func(decode func(any) error) error
	// Script returns all that Store.Migrate would run on an empty database, as Store.PendingScript does; it connects to nothing. May be nil.
	Script func(decode func(any) error, sets []MigrationSet) (string, error)
	// Capabilities is what the database promises where it is well configured. The keystore.Store of an open one says what it promises as it is.
	Capabilities keystore.Capabilities
}

// Options are what every adapter gets from the application.
type Options struct {
	Logger  *slog.Logger
	DataDir string
	// ClientName names this process to the database.
	ClientName string
	// Connections is how many connections the application can use at once; an adapter's own setting wins.
	Connections int
	// Dial, where set, makes the connections in place of the adapter, for who wants to break them; TLS goes on top. DynamoDB's are made by Amazon's client.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Store is one open database. Safe for concurrent use.
type Store interface {
	Keys() keystore.Store
	Outbox() outbox.Source
	Parking() parking.Store

	// DB is the handle for reading and for migrations of plugins.
	DB() *sqlx.DB
	// Dialect names the migrations' folder: "postgres", "sqlite", "mysql".
	Dialect() string

	// Migrate brings the tables of the store and then of each set up to date. Safe when several replicas start at once and when one is killed in between.
	Migrate(ctx context.Context, sets []MigrationSet) error
	// Pending lists the migrations that Migrate would apply, as "set/version name".
	Pending(ctx context.Context, sets []MigrationSet) ([]string, error)

	// PendingScript returns the SQL that Migrate would run, for a person to run with the database's own client: afterwards nothing is pending. Empty
	// where nothing is missing.
	PendingScript(ctx context.Context, sets []MigrationSet) (string, error)

	// Publish writes messages to the outbox in a transaction of the caller's: *sql.Tx or *sqlx.Tx (others where the adapter says so). They leave
	// when it commits; the relay finds them when it polls. outbox.NewRecord makes a message's record; InTx does all of it, for Watermill's messages.
	Publish(ctx context.Context, tx any, records []outbox.Record) error

	// Ping returns nil when the database answers now.
	Ping(ctx context.Context) error
	// Close is safe to call twice.
	Close() error
}

// MigrationSet is the migrations of one plugin.
type MigrationSet struct {
	// Name keeps the versions of plugins apart: lower case, letters, digits, '_'.
	Name string
	// Files has a folder for each dialect, with goose files such as postgres/00001_init.sql. ErrDialect where the store's is missing.
	Files fs.FS
}
