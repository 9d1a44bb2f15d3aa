// Package txtest runs the built-in handlers against real databases, one transaction for each
// delivery, without the engine: what it leaves out is the claim of the key.
package txtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/goccy/go-yaml"
	"github.com/jmoiron/sqlx"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // driver "sqlite"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// Scope is the scope of every delivery.
const Scope = "test"

// DB is a database with a plugin's tables.
type DB struct {
	*sqlx.DB
	Dialect string

	t        testing.TB
	bindings map[string]handlers.Binding
}

// Each runs a test on SQLite, PostgreSQL and MySQL, each with fresh tables. config is the plugin's section as YAML.
func Each(t *testing.T, plugin handlers.Plugin, config string, run func(t *testing.T, db *DB)) {
	for _, dialect := range []string{"sqlite", "postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) { run(t, Open(t, dialect, plugin, config)) })
	}
}

// Open returns a database of one dialect with the plugin's tables, and skips the test where it is not there.
func Open(t testing.TB, dialect string, plugin handlers.Plugin, config string) *DB {
	t.Helper()
	db := &DB{Dialect: dialect, t: t, bindings: map[string]handlers.Binding{}}
	switch dialect {
	case "sqlite":
		db.DB = openSQLite(t)
	case "postgres":
		db.DB = openPostgres(t)
	case "mysql":
		db.DB = openMySQL(t)
	default:
		t.Fatalf("no dialect %q", dialect)
	}
	migrate(t, db, plugin)
	bindings := Bindings(t, plugin, config)
	for _, b := range bindings {
		db.bindings[b.Topic] = b
	}
	return db
}

// Bindings opens the plugin and returns what it declares.
func Bindings(t testing.TB, plugin handlers.Plugin, config string) []handlers.Binding {
	t.Helper()
	require.NoError(t, plugin.Validate())
	bindings := handlers.NewBindings(plugin.Name)
	require.NoError(t, plugin.Open(decoder(config), bindings))
	return bindings.List()
}

// decoder reads YAML as the application does: unknown names are errors.
func decoder(config string) func(any) error {
	return func(target any) error {
		if config == "" {
			return nil
		}
		return yaml.UnmarshalWithOptions([]byte(config), target, yaml.Strict())
	}
}

func openSQLite(t testing.TB) *sqlx.DB {
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := sqlx.Open("sqlite", "file:"+path+
		"?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=foreign_keys(1)&_pragma=synchronous(OFF)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func openPostgres(t testing.TB) *sqlx.DB {
	db, err := sqlx.Open("pgx", testenv.Postgres(t).DSN)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// openMySQL opens sessions as the application does.
func openMySQL(t testing.TB) *sqlx.DB {
	cfg, err := mysql.ParseDSN(testenv.MySQL(t).DSN)
	require.NoError(t, err)
	cfg.ParseTime, cfg.ClientFoundRows, cfg.InterpolateParams = true, true, true
	cfg.Params = map[string]string{"sql_mode": "'TRADITIONAL,PIPES_AS_CONCAT'", "tx_isolation": "'READ-COMMITTED'", "time_zone": "'+00:00'"}
	db, err := sqlx.Open("mysql", cfg.FormatDSN())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func migrate(t testing.TB, db *DB, plugin handlers.Plugin) {
	files, err := fs.Sub(plugin.Migrations, db.Dialect)
	require.NoError(t, err)
	dialect := map[string]goose.Dialect{"sqlite": goose.DialectSQLite3, "postgres": goose.DialectPostgres, "mysql": goose.DialectMySQL}[db.Dialect]
	provider, err := goose.NewProvider(dialect, db.DB.DB, files)
	require.NoError(t, err)
	_, err = provider.Up(context.Background())
	require.NoError(t, err)
}

// Delivery is what one delivery did.
type Delivery struct {
	Result    json.RawMessage
	Published []Published
	Err       error
}

// Published is one message that a handler sent.
type Published struct {
	Topic   string
	Payload json.RawMessage
}

// Deliver runs the transactional handler of topic once. Its transaction commits unless the handler fails.
// payload is a string (taken as it is), or is sent as JSON.
func (db *DB) Deliver(topic, key string, payload any) Delivery {
	db.t.Helper()
	handle, msg := db.Handler(topic), Message(db.t, key, payload)
	return db.Do(key, func(ctx context.Context, tx handlers.Tx) (any, error) {
		return handle(ctx, tx, msg)
	})
}

// Handler returns the transactional handler of topic.
func (db *DB) Handler(topic string) handlers.Handler {
	db.t.Helper()
	handle := db.bindings[topic].Handler
	require.NotNil(db.t, handle, "no transactional handler for %q", topic)
	return handle
}

// Do runs handle in a transaction for key.
func (db *DB) Do(key string, handle func(ctx context.Context, tx handlers.Tx) (any, error)) (d Delivery) {
	db.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	raw, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return Delivery{Err: err}
	}
	defer func() { _ = raw.Rollback() }()

	tx := &Tx{tx: raw, key: key}
	result, err := handle(ctx, tx)
	if err == nil {
		err = tx.flush(ctx)
	}
	if err != nil {
		return Delivery{Err: err}
	}
	if d.Result, err = json.Marshal(result); err != nil {
		return Delivery{Err: err}
	}
	if err := raw.Commit(); err != nil {
		return Delivery{Err: err}
	}
	for _, hook := range tx.after {
		hook(ctx)
	}
	d.Published = tx.published
	return d
}

// Message makes a message with a new UUID.
func Message(t testing.TB, key string, payload any) *message.Message {
	t.Helper()
	text, ok := payload.(string)
	if !ok {
		encoded, err := json.Marshal(payload)
		require.NoError(t, err)
		text = string(encoded)
	}
	msg := message.NewMessage(envelope.NewUUID(), []byte(text))
	msg.Metadata.Set(envelope.KeyHeader, key)
	return msg
}

// Text returns what a query with one row and one column yields, as text ("" for NULL).
func (db *DB) Text(query string, args ...any) string {
	db.t.Helper()
	if db.Dialect == "mysql" {
		query = strings.ReplaceAll(query, " AS text)", " AS char)")
	}
	var value any
	require.NoError(db.t, db.QueryRow(db.Rebind(query), args...).Scan(&value))
	switch v := value.(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}
