package store_test

import (
	"context"
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// ownTx is a transaction of an application that knows nothing of the store's connections.
type ownTx struct {
	tx               any
	exec             func(query string) error
	commit, rollback func() error
}

type application struct {
	store store.Store
	// begin opens a transaction of each kind that the store takes, on the application's own pool.
	begin map[string]func(t *testing.T) ownTx
	// orders counts the application's rows.
	orders func(t *testing.T) int
}

func onPool(db *sqlx.DB) map[string]func(t *testing.T) ownTx {
	return map[string]func(t *testing.T) ownTx{
		"sql": func(t *testing.T) ownTx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			return ownTx{tx, func(q string) error { _, err := tx.Exec(q); return err }, tx.Commit, tx.Rollback}
		},
		"sqlx": func(t *testing.T) ownTx {
			tx, err := db.BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			return ownTx{tx, func(q string) error { _, err := tx.Exec(q); return err }, tx.Commit, tx.Rollback}
		},
	}
}

func counting(db *sqlx.DB) func(t *testing.T) int {
	return func(t *testing.T) (n int) {
		require.NoError(t, db.Get(&n, `SELECT count(*) FROM orders`))
		return n
	}
}

func pool(t *testing.T, driver, dsn string) *sqlx.DB {
	db, err := sqlx.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.Exec(`CREATE TABLE orders (id INT)`)
	require.NoError(t, err)
	return db
}

func ready(t *testing.T, s store.Store, err error) store.Store {
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context(), nil))
	return s
}

func sqliteApplication(t *testing.T) application {
	s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "test.db")}, store.Options{})
	ready(t, s, err)
	_, err = s.DB().Exec(`CREATE TABLE orders (id INT)`)
	require.NoError(t, err)
	return application{s, onPool(s.DB()), counting(s.DB())}
}

// The application's connections search another schema, in which there is a table of the same name.
func postgresApplication(t *testing.T) application {
	of, own := testenv.Postgres(t), testenv.Postgres(t)
	u, err := url.Parse(of.DSN)
	require.NoError(t, err)
	q := u.Query()
	q.Del("search_path")
	u.RawQuery = q.Encode()
	s, err := pgstore.Open(t.Context(), pgstore.Config{DSN: u.String(), Schema: of.Schema}, store.Options{})
	ready(t, s, err)
	db := pool(t, "pgx", own.DSN)
	_, err = db.Exec(`CREATE TABLE outbox (id INT)`)
	require.NoError(t, err)
	begin := onPool(db)
	begin["pgx"] = func(t *testing.T) ownTx {
		conn, err := pgx.Connect(t.Context(), own.DSN)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		return ownTx{
			tx, func(q string) error { _, err := tx.Exec(t.Context(), q); return err },
			func() error { return tx.Commit(t.Context()) }, func() error { return tx.Rollback(t.Context()) },
		}
	}
	return application{s, begin, counting(db)}
}

// The application's connections are in another database, and write times in another zone.
func mysqlApplication(t *testing.T) application {
	of, own := testenv.MySQL(t), testenv.MySQL(t)
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Config{DSN: of.DSN}, store.Options{})
	ready(t, s, err)
	cfg, err := mysql.ParseDSN(own.DSN)
	require.NoError(t, err)
	cfg.Loc = time.FixedZone("UTC+9", 9*60*60)
	cfg.InterpolateParams = true
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	db := sqlx.NewDb(sql.OpenDB(connector), "mysql")
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.Exec(`CREATE TABLE orders (id INT)`)
	require.NoError(t, err)
	return application{s, onPool(db), counting(db)}
}

// TestInTx: an application's rows and its messages commit together, or not at all, whatever kind of transaction it uses and however its own
// connections are set up.
func TestInTx(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) application{
		"sqlite": sqliteApplication, "postgres": postgresApplication, "mysql": mysqlApplication,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := open(t)
			orders := 0
			for kind, begin := range app.begin {
				t.Run(kind, func(t *testing.T) {
					orders++
					testInTx(t, app, kind, begin)
					require.Equal(t, orders, app.orders(t))
				})
			}
			records, err := app.store.Outbox().List(t.Context(), false, 100)
			require.NoError(t, err)
			require.Len(t, records, 2*orders)
		})
	}
}

func testInTx(t *testing.T, app application, kind string, begin func(t *testing.T) ownTx) {
	opts := envelope.PublisherOptions{Key: func(_ string, msg *message.Message) (string, error) {
		return envelope.Compose("order", msg.Metadata.Get("order-id"), "creation")
	}}
	written := func(prefix string) map[string]time.Time {
		records, err := app.store.Outbox().List(t.Context(), false, 100)
		require.NoError(t, err)
		found := map[string]time.Time{}
		for _, r := range records {
			if r.Metadata["kind"] == prefix {
				require.Equal(t, "orders.created", r.Topic)
				require.JSONEq(t, `{"a":"é\u0000"}`, string(r.Payload))
				require.Equal(t, r.Key, r.Metadata[envelope.KeyHeader])
				require.NotEmpty(t, r.UUID)
				require.Empty(t, r.Scope)
				found[r.Key] = r.DeliverAt
			}
		}
		return found
	}
	order := func(id string) *message.Message {
		msg := message.NewMessage("", []byte(`{"a":"é\u0000"}`))
		msg.Metadata = message.Metadata{"order-id": id, "kind": kind}
		return msg
	}
	id := kind + "1"

	undone := begin(t)
	require.NoError(t, undone.exec(`INSERT INTO orders VALUES (0)`))
	require.NoError(t, store.InTx(t.Context(), app.store, undone.tx, opts).Publish("orders.created", order(id)))
	require.NoError(t, undone.rollback())
	require.Empty(t, written(kind), "rolled back")

	tx := begin(t)
	require.NoError(t, tx.exec(`INSERT INTO orders VALUES (1)`))
	out := store.InTx(t.Context(), app.store, tx.tx, opts)
	violation := (*envelope.Violation)(nil)
	require.ErrorAs(t, out.Publish("orders.created", order("good"), order("")), &violation)
	require.Equal(t, envelope.RuleKeyEmpty, violation.Rule)
	delayed := order(id + "-later")
	at := time.Now().Add(72 * time.Hour).UTC().Round(time.Second)
	delayed.Metadata.Set(envelope.DeliverAtHeader, at.Format(time.RFC3339))
	require.NoError(t, out.Publish("orders.created", order(id), delayed))
	require.NoError(t, out.Close())
	require.Empty(t, written(kind), "not committed yet")
	require.NoError(t, tx.commit())

	found := written(kind)
	require.Len(t, found, 2)
	require.Zero(t, found["order-"+id+"-creation"])
	require.WithinDuration(t, at, found["order-"+id+"-later-creation"], 0)
}

// TestInTxTakesTransactionsOnly: a pool would commit each statement by itself.
func TestInTxTakesTransactionsOnly(t *testing.T) {
	t.Parallel()
	app := sqliteApplication(t)
	msg := message.NewMessage("", []byte("x"))
	err := store.InTx(t.Context(), app.store, app.store.DB(), envelope.PublisherOptions{}).Publish("orders", msg)
	require.ErrorContains(t, err, "*sqlx.DB")
}
