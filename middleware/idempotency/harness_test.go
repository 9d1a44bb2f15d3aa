package idempotency_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// tests are a package's tests that leave no connection behind which was for the set-up only.
type tests struct{ *testing.M }

func (t tests) Run() int {
	defer http.DefaultClient.CloseIdleConnections()
	return t.M.Run()
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(tests{m},
		// sarama's, one for the process.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// Watermill's Deduplicator never ends this one.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message/router/middleware.(*mapExpiringKeyRepository).cleanOutLoop"))
}

const (
	scope = "svc/pay"
	topic = "orders"
	// patience is how long something that must happen may take on a busy machine.
	patience = 30 * time.Second
)

// harness is one migrated database with a table of effects; each run of a handler that commits leaves one row.
type harness struct {
	store.Store
	// open opens the database again, on connections of its own, as another process would. connections 0 is the adapter's default.
	open func(t *testing.T, connections int) store.Store
}

// eachStore runs a test on every database that there is.
func eachStore(t *testing.T, test func(t *testing.T, h *harness)) {
	t.Helper()
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *harness{"sqlite": onSQLite, "postgres": onPostgres, "mysql": onMySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func onSQLite(t *testing.T) *harness {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	return newHarness(t, func(t *testing.T, connections int) store.Store {
		s, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Path: path}, store.Options{Logger: slog.New(slog.DiscardHandler), Connections: connections})
		require.NoError(t, err)
		return s
	})
}

func onPostgres(t *testing.T) *harness {
	t.Helper()
	db := testenv.Postgres(t)
	return newHarness(t, postgresOpener(db, db.DSN))
}

func onMySQL(t *testing.T) *harness {
	t.Helper()
	db := testenv.MySQL(t)
	return newHarness(t, func(t *testing.T, connections int) store.Store {
		c := mysqlstore.Config{DSN: db.DSN, MaxOpen: connections}
		s, err := mysqlstore.Open(t.Context(), c, store.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return s
	})
}

// postgresOpener opens the schema of db at dsn, which may lead through a proxy.
func postgresOpener(db testenv.Database, dsn string) func(t *testing.T, connections int) store.Store {
	return func(t *testing.T, connections int) store.Store {
		c := pgstore.Config{DSN: dsn, Schema: db.Schema, MaxOpen: connections}
		s, err := pgstore.Open(t.Context(), c, store.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		return s
	}
}

func newHarness(t *testing.T, open func(t *testing.T, connections int) store.Store) *harness {
	t.Helper()
	h := &harness{open: func(t *testing.T, connections int) store.Store {
		t.Helper()
		s := open(t, connections)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}}
	h.Store = h.open(t, 0)
	require.NoError(t, h.Migrate(t.Context(), nil))
	effects := map[string]string{
		"sqlite":   `CREATE TABLE effects (n integer PRIMARY KEY AUTOINCREMENT, k VARCHAR(300) NOT NULL, v VARCHAR(300) NOT NULL)`,
		"postgres": `CREATE TABLE effects (n bigserial, k VARCHAR(300) NOT NULL, v VARCHAR(300) NOT NULL)`,
		"mysql":    `CREATE TABLE effects (n bigint AUTO_INCREMENT PRIMARY KEY INVISIBLE, k VARBINARY(300) NOT NULL, v VARBINARY(300) NOT NULL)`,
	}[h.Dialect()]
	_, err := h.DB().ExecContext(t.Context(), effects)
	require.NoError(t, err)
	return h
}

func (h *harness) sqlite() bool { return h.Dialect() == "sqlite" }

// effect is the handler that leaves one row.
func effect(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
	_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`), tx.Key(), string(msg.Payload))
	return nil, err
}

// failing makes a handler that writes its row and fails after it for as long as fail returns an error.
func failing(fail func(msg *message.Message) error) idempotency.Handler {
	return func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		if _, err := effect(ctx, tx, msg); err != nil {
			return nil, err
		}
		return nil, fail(msg)
	}
}

// count runs a query for one number.
func (h *harness) count(t *testing.T, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, h.DB().GetContext(t.Context(), &n, h.DB().Rebind(query), args...))
	return n
}

func (h *harness) effects(t *testing.T) int { return h.count(t, `SELECT count(*) FROM effects`) }

// effectsOf is how often the effect of a key happened.
func (h *harness) effectsOf(t *testing.T, key string) int {
	return h.count(t, `SELECT count(*) FROM effects WHERE k = ?`, key)
}

// values are the payloads of the effects in the order of their statements, which for one ordering key is that of their commits.
func (h *harness) values(t *testing.T) []string {
	t.Helper()
	var values []string
	require.NoError(t, h.DB().SelectContext(t.Context(), &values, `SELECT v FROM effects ORDER BY n`))
	return values
}

// key is a key as it stands in the store.
func (h *harness) key(t *testing.T, scope, key string) keystore.Record {
	t.Helper()
	records, err := h.Keys().Peek(t.Context(), []keystore.ID{{Scope: scope, Key: key}})
	require.NoError(t, err)
	return records[0]
}

// rows are the parked rows of some states; all of them where none is named.
func (h *harness) rows(t *testing.T, states ...parking.State) []parking.Row {
	t.Helper()
	rows, err := h.Parking().List(t.Context(), parking.Filter{States: states, Limit: 1000})
	require.NoError(t, err)
	return rows
}

// dead is the only dead letter.
func (h *harness) dead(t *testing.T) parking.Row {
	t.Helper()
	rows := h.rows(t, parking.Dead)
	require.Len(t, rows, 1)
	return rows[0]
}

// outgoing is a row of the outbox.
type outgoing struct {
	Topic    string `db:"topic"`
	UUID     string `db:"message_uuid"`
	Key      string `db:"idempotency_key"`
	Ordering string `db:"ordering_key"`
	Metadata []byte `db:"metadata"`
	Payload  []byte `db:"payload"`
	Parent   string `db:"parent_key"`
}

func (h *harness) outgoing(t *testing.T) []outgoing {
	t.Helper()
	var rows []outgoing
	require.NoError(t, h.DB().SelectContext(t.Context(), &rows,
		`SELECT topic, message_uuid, idempotency_key, ordering_key, metadata, payload, parent_key FROM outbox ORDER BY id`))
	return rows
}

// message makes an outgoing row a delivered message, as relay and broker do.
func (o outgoing) message(t *testing.T) *message.Message {
	t.Helper()
	msg := message.NewMessage(o.UUID, o.Payload)
	require.NoError(t, json.Unmarshal(o.Metadata, &msg.Metadata))
	return msg
}

// engine is an engine on a harness, with what it told its observer.
type engine struct {
	*idempotency.Engine
	scope string
	mu    sync.Mutex
	seen  map[string]int
}

// patient gives messages as long as a busy machine may need, where a test sets no bound itself.
func patient(b idempotency.Binding) idempotency.Binding {
	b.Retry.InProcess, b.Retry.Contention = cmp.Or(b.Retry.InProcess, patience), cmp.Or(b.Retry.Contention, patience)
	return b
}

// newEngine makes an engine that is stopped at the end of the test. Each option changes the configuration.
func (h *harness) newEngine(t *testing.T, b idempotency.Binding, options ...func(*idempotency.Config)) *engine {
	t.Helper()
	if b.Scope == "" {
		b.Scope = scope
	}
	b.Topic = topic
	e := &engine{scope: b.Scope, seen: map[string]int{}}
	cfg := idempotency.Config{Binding: patient(b), Keys: h.Keys(), Parking: h.Parking(), Owner: "test", Observe: e.observe, Logger: testLog(t)}
	for _, option := range options {
		option(&cfg)
	}
	var err error
	e.Engine, err = idempotency.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		e.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, e.Wait(ctx))
	})
	return e
}

// on gives an engine the store of another process.
func on(s store.Store) func(*idempotency.Config) {
	return func(c *idempotency.Config) { c.Keys, c.Parking = s.Keys(), s.Parking() }
}

// quiet is for tests whose messages fail by the hundred.
func quiet(c *idempotency.Config) { c.Logger = nil }

func withFault(f faultpoint.Hook) func(*idempotency.Config) {
	return func(c *idempotency.Config) { c.Fault = f }
}

func (e *engine) observe(event idempotency.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[string(event.Kind)]++
	e.seen[string(event.Kind)+":"+event.Reason]++
}

// events is how often a kind was observed, or a kind with a reason ("dead_letter:crashed").
func (e *engine) events(kind idempotency.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen[string(kind)]
}

// acked delivers messages one after the other and requires that each is acked.
func (e *engine) acked(t *testing.T, msgs ...*message.Message) {
	t.Helper()
	for _, msg := range msgs {
		require.NoError(t, e.Process(msg))
	}
}

// deliver delivers each message in a goroutine, as a router does, and returns what waits for all of them.
func (e *engine) deliver(msgs ...*message.Message) (wait func() []error) {
	errs := make([]error, len(msgs))
	var group sync.WaitGroup
	for i, msg := range msgs {
		group.Go(func() { errs[i] = e.Process(msg) })
	}
	return func() []error {
		group.Wait()
		return errs
	}
}

// runDue runs the rows that are due now through e, one after the other, and returns how many there were.
func (h *harness) runDue(t *testing.T, e *engine) int {
	t.Helper()
	rows, err := h.Parking().LeaseDue(t.Context(), []string{e.scope}, 100, time.Minute)
	require.NoError(t, err)
	for _, row := range rows {
		require.NoError(t, e.RunParked(t.Context(), row))
	}
	return len(rows)
}

// leased leases the only row that is due, as a feeder does.
func (h *harness) leased(t *testing.T, scope string, lease time.Duration) parking.Leased {
	t.Helper()
	rows, err := h.Parking().LeaseDue(t.Context(), []string{scope}, 100, lease)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return rows[0]
}

// feed runs a feeder over engines until the test ends.
func (h *harness) feed(t *testing.T, engines ...*engine) {
	t.Helper()
	cfg := parking.FeederConfig{Store: h.Parking(), Poll: 20 * time.Millisecond, Logger: testLog(t)}
	byScope := map[string]*engine{}
	for _, e := range engines {
		cfg.Scopes, byScope[e.scope] = append(cfg.Scopes, e.scope), e
	}
	cfg.Run = func(ctx context.Context, row parking.Leased) error { return byScope[row.Scope].RunParked(ctx, row) }
	feeder, err := parking.NewFeeder(cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = feeder.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// redriven sends a dead letter back.
func (h *harness) redrive(t *testing.T, id int64, asKey string) {
	t.Helper()
	require.NoError(t, h.Parking().Redrive(t.Context(), id, asKey, parking.Action{By: "test"}))
}

// newMessage makes a message with a key; more are further headers in pairs.
func newMessage(key, payload string, more ...string) *message.Message {
	msg := message.NewMessage(envelope.NewUUID(), []byte(payload))
	msg.Metadata.Set(envelope.KeyHeader, key)
	for i := 0; i < len(more); i += 2 {
		msg.Metadata.Set(more[i], more[i+1])
	}
	return msg
}

// redelivered is a message as the broker delivers it again.
func redelivered(msg *message.Message) *message.Message {
	c := msg.Copy()
	c.SetContext(envelope.WithDelivery(context.Background(), envelope.Delivery{Broker: "test", Redelivered: true}))
	return c
}

// eventually waits until check holds.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		if check() {
			return nil
		}
		return fmt.Errorf("not yet: %s", what)
	})
}

// testLog writes to the test's log what is worth a warning.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(&logWriter{t: t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// logWriter drops what comes after the end of the test.
type logWriter struct {
	t *testing.T
}

func (w *logWriter) Write(line []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(strings.TrimSpace(string(line)))
	}
	return len(line), nil
}
