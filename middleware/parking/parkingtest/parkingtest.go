// Package parkingtest is the conformance suite of parking.Store, and of the feeder on top of it. A
// store's test builds a Harness and calls Run; what it runs is a closed list, one file for each topic.
package parkingtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Harness is one store under test: empty, and nobody else's.
type Harness struct {
	Store parking.Store
	// Settle completes the row's key and removes the row in one transaction, guarded by its lease, as a handler's
	// success does. It returns an error that wraps parking.ErrLeaseLost when the lease is lost.
	Settle func(ctx context.Context, l parking.Leased) error
	// Reopen opens the same data a second time, on connections of its own, as another process
	// would. It closes it at the end of the test.
	Reopen func(t *testing.T) parking.Store
	// Contended reports that err is worth a fresh try at once.
	Contended func(err error) bool
	// Advance moves the store's clock. Nil where it cannot be moved: then the suite waits.
	Advance func(d time.Duration)
}

// Run runs the whole suite. newHarness is called once for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	groups := []struct {
		name  string
		tests []test
	}{
		{"Park", parkTests},
		{"LeaseDue", dueTests},
		{"Leases", leaseTests},
		{"Desk", deskTests},
		{"Redrive", redriveTests},
		{"Feeder", feederTests},
		{"FeederFaults", feederFaultTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, newHarness(t))
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
	scope = "svc.binding"
	// long is a lease that does not end within a test.
	long = 10 * time.Minute
	// short is a lease that ends within a test.
	short = 600 * time.Millisecond
	// patience is how long something that must happen may take on a busy machine.
	patience = 30 * time.Second

	printA = "payload:1:aaaa"
	printB = "payload:1:bbbb"
)

var (
	scopes = []string{scope}
	alice  = parking.Action{By: "alice", Why: "because"}
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

// row makes a row that waits and is due.
func row(key string) parking.Row {
	return parking.Row{
		State: parking.Waiting, Scope: scope, Topic: "orders", UUID: envelope.NewUUID(), Key: key, Fingerprint: printA,
		Payload: []byte(key), Metadata: map[string]string{envelope.KeyHeader: key},
		Reason: "transient", Class: "transient", Error: "it did not work", Attempts: 1,
	}
}

// ordered makes a row with an ordering key.
func ordered(key, orderingKey string) parking.Row {
	r := row(key)
	r.OrderingKey = orderingKey
	return r
}

func dead(key, reason string) parking.Row {
	r := row(key)
	r.State, r.Reason, r.Class = parking.Dead, reason, "permanent"
	return r
}

func park(t *testing.T, s parking.Store, rows ...parking.Row) {
	t.Helper()
	require.NoError(t, s.Park(t.Context(), rows))
}

func list(t *testing.T, s parking.Store, f parking.Filter) []parking.Row {
	t.Helper()
	rows, err := s.List(t.Context(), f)
	require.NoError(t, err)
	return rows
}

// only returns the one row of a key.
func only(t *testing.T, s parking.Store, key string) parking.Row {
	t.Helper()
	rows := list(t, s, parking.Filter{Key: key})
	require.Len(t, rows, 1, key)
	return rows[0]
}

func keys(rows []parking.Row) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.Key
	}
	return out
}

// lease leases what is due.
func lease(t *testing.T, s parking.Store, limit int, d time.Duration) []parking.Leased {
	t.Helper()
	rows, err := s.LeaseDue(t.Context(), scopes, limit, d)
	require.NoError(t, err)
	require.LessOrEqual(t, len(rows), limit)
	return rows
}

func leasedKeys(rows []parking.Leased) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.Key
	}
	return out
}

// leaseEventually leases one row as soon as one is due.
func leaseEventually(t *testing.T, s parking.Store) parking.Leased {
	t.Helper()
	var got []parking.Leased
	eventually(t, func() error {
		if got = lease(t, s, 1, long); len(got) == 0 {
			return errors.New("nothing is due")
		}
		return nil
	})
	return got[0]
}

// settle settles a row, as often as rivals get in its way.
func (h Harness) settle(ctx context.Context, l parking.Leased) error {
	for {
		err := h.Settle(ctx, l)
		if err == nil || h.Contended == nil || !h.Contended(err) {
			return err
		}
	}
}

// ran notes which rows were run.
type ran struct {
	mu   sync.Mutex
	keys []string
}

func (r *ran) add(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = append(r.keys, key)
}

func (r *ran) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.keys...)
}

// waits requires n runs, sooner or later.
func (r *ran) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() error {
		if got := r.all(); len(got) < n {
			return fmt.Errorf("%d of %d rows were run", len(got), n)
		}
		return nil
	})
}

// receive takes the next value of c, which must come sooner or later.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.Fail(t, "nothing came", "within %s", patience)
		panic("unreachable")
	}
}
