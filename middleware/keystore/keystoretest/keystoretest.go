// Package keystoretest is the conformance suite of keystore.Store. A store's test builds a Harness and calls
// Run; what it runs is a closed list, one file for each topic.
package keystoretest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Handle is one way into the data under test.
type Handle struct {
	Store   keystore.Store
	Parking parking.Store
	Outbox  outbox.Source
}

// Harness is one store under test: migrated, empty, and nobody else's.
type Harness struct {
	Handle
	// DB is a plain handle on the same database, for a business table that the suite makes, and for reading.
	DB *sqlx.DB
	// Reopen opens the same data a second time, on connections of its own, as another process
	// would. It closes it at the end of the test.
	Reopen func(t *testing.T) Handle
	// Advance moves the store's clock. Nil where it cannot be moved: then the suite waits.
	Advance func(d time.Duration)
}

// Run runs the whole suite. newHarness is called once for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	run(t, newHarness, slices.Concat(claimGroups, []group{
		{"Outputs", outputTests},
		{"Attempts", attemptTests},
		{"Desk", deskTests},
		{"Clean", cleanTests},
		{"Epochs", epochTests},
		{"Classify", classifyTests},
	}))
}

// RunLeases runs what claims and leases promise, for a database whose leases are elsewhere: the desk stays the database's.
func RunLeases(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	run(t, newHarness, claimGroups)
}

type group struct {
	name  string
	tests []test
}

var claimGroups = []group{
	{"Claim", claimTests},
	{"Rivals", rivalTests},
	{"Commit", commitTests},
	{"Settle", settleTests},
	{"Ordering", orderingTests},
	{"Leasing", wholeTests()},
	{"Lease", leaseTests},
	{"Fencing", fencingTests},
	{"Redriven", redrivenTests},
}

func run(t *testing.T, newHarness func(t *testing.T) Harness, groups []group) {
	t.Helper()
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					h := newHarness(t)
					_, err := h.DB.ExecContext(t.Context(), `CREATE TABLE effects (k VARCHAR(255) NOT NULL, n INTEGER NOT NULL)`)
					require.NoError(t, err)
					c.run(t, h)
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(t *testing.T, h Harness)
}

const (
	scope     = "svc.binding"
	retention = time.Hour
	// long is a lease that does not end within a test.
	long = 10 * time.Minute
	// short is a lease that ends within a test.
	short = 600 * time.Millisecond
	// patience is how long something that must happen may take on a busy machine.
	patience = 30 * time.Second

	printA = "payload:1:aaaa"
	printB = "payload:1:bbbb"
)

// elapse lets the store's clock run on by d.
func (h Harness) elapse(d time.Duration) {
	if h.Advance != nil {
		h.Advance(d)
		return
	}
	time.Sleep(d)
}

// eventually waits for check to return nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "not within %s", patience)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func claim(key string) keystore.Claim {
	return keystore.Claim{ID: keystore.ID{Scope: scope, Key: key}, Fingerprint: printA}
}

func completed(c keystore.Claim, result string) keystore.Completion {
	done := keystore.Completion{Claim: c, State: keystore.Completed, Retention: retention, Owner: "tester"}
	if result != "" {
		done.Result = json.RawMessage(result)
	}
	return done
}

// begin opens a transaction that is rolled back at the end of the test, if it is still open.
func begin(t *testing.T, s keystore.Transactional) keystore.Tx {
	t.Helper()
	tx, err := s.Begin(t.Context(), keystore.TxOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// claimOne claims one key in tx.
func claimOne(t *testing.T, tx keystore.Tx, c keystore.Claim) keystore.Verdict {
	t.Helper()
	verdicts, err := tx.Claim(t.Context(), []keystore.Claim{c})
	require.NoError(t, err)
	require.Len(t, verdicts, 1)
	return verdicts[0]
}

// probe tells what a claim would get, and leaves nothing behind.
func probe(t *testing.T, s keystore.Transactional, c keystore.Claim) keystore.Verdict {
	t.Helper()
	tx := begin(t, s)
	v := claimOne(t, tx, c)
	require.NoError(t, tx.Rollback())
	return v
}

// commit claims a key, which must be the caller's, and completes it.
func commit(t *testing.T, s keystore.Transactional, done keystore.Completion) {
	t.Helper()
	tx := begin(t, s)
	require.Equal(t, keystore.Fresh, claimOne(t, tx, done.Claim).Outcome)
	require.NoError(t, tx.Commit(t.Context(), []keystore.Completion{done}))
}

// complete makes keys completed.
func complete(t *testing.T, s keystore.Transactional, keys ...string) {
	t.Helper()
	for _, key := range keys {
		commit(t, s, completed(claim(key), ""))
	}
}

// effect writes a business row.
func effect(ctx context.Context, tx keystore.Tx, key string) error {
	_, err := tx.SQL().ExecContext(ctx, tx.SQL().Rebind(`INSERT INTO effects (k, n) VALUES (?, 1)`), key)
	return err
}

// effects counts the business rows of key.
func (h Harness) effects(t *testing.T, key string) int {
	t.Helper()
	var n int
	require.NoError(t, h.DB.GetContext(t.Context(), &n, h.DB.Rebind(`SELECT count(*) FROM effects WHERE k = ?`), key))
	return n
}

// row makes a parked row of the key.
func row(c keystore.Claim, state parking.State) parking.Row {
	return parking.Row{
		State: state, Scope: c.Scope, Topic: "orders", UUID: envelope.NewUUID(), Key: c.Key, OrderingKey: c.OrderingKey,
		Fingerprint: c.Fingerprint, Payload: []byte(`{"a":1}`), Metadata: map[string]string{envelope.KeyHeader: c.Key},
		Reason: "test", Class: "transient", Error: "it did not work", Attempts: 1,
	}
}

// park writes a row on its own.
func park(t *testing.T, s parking.Store, r parking.Row) {
	t.Helper()
	require.NoError(t, s.Park(t.Context(), []parking.Row{r}))
}

// parked returns the rows of a key.
func parked(t *testing.T, s parking.Store, key string) []parking.Row {
	t.Helper()
	rows, err := s.List(t.Context(), parking.Filter{Key: key})
	require.NoError(t, err)
	return rows
}

// leaseRow leases the one row that is due.
func leaseRow(t *testing.T, s parking.Store, lease time.Duration) parking.Leased {
	t.Helper()
	rows, err := s.LeaseDue(t.Context(), []string{scope}, 10, lease)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return rows[0]
}

// state returns the state of a key.
func state(t *testing.T, s keystore.Store, key string) keystore.State {
	t.Helper()
	records, err := s.Peek(t.Context(), []keystore.ID{{Scope: scope, Key: key}})
	require.NoError(t, err)
	require.Len(t, records, 1)
	return records[0].State
}

// outgoing counts the records of the outbox.
func (h Harness) outgoing(t *testing.T) int {
	t.Helper()
	records, err := h.Outbox.List(t.Context(), false, 1000)
	require.NoError(t, err)
	return len(records)
}

func message(key string) outbox.Record {
	return outbox.Record{Topic: "out", UUID: envelope.NewUUID(), Key: key, Payload: []byte(key), Scope: scope}
}

func numbered(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%03d", prefix, i)
	}
	return keys
}
