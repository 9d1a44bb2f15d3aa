// Package outboxtest is the conformance suite of outbox.Source, and of the relay on top of
// it. An adapter's test builds a Harness and calls Run; what it runs is a closed list.
package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Harness is one outbox under test: empty, and nobody else's.
type Harness struct {
	// Source is the outbox.
	Source outbox.Source
	// Commit writes records in the order of the slice and commits, as a handler's commit does: it wakes the relay.
	Commit func(ctx context.Context, records []outbox.Record) error
	// Begin writes records in a transaction of a caller's own and leaves it open.
	Begin func(ctx context.Context, records []outbox.Record) (Tx, error)
	// Reopen opens the same outbox a second time, on connections of its own, as another process
	// would. It closes it at the end of the test.
	Reopen func(t *testing.T) outbox.Source
	// Writers is how many transactions can write at once; 0 is no bound.
	Writers int
	// Poll is how often the suite's relays look at an idle lane, where each look is dear for the server of the tests; 50ms unless it is longer.
	Poll time.Duration
	// Advance moves the store's clock. Nil where it cannot be moved: then the suite waits.
	Advance func(d time.Duration)
}

// Tx is a transaction that is open.
type Tx interface {
	Commit() error
	// Rollback after a commit does nothing; its error does not matter then.
	Rollback() error
}

// InSQL is a Begin for a database of SQL; write writes records in one of its transactions.
func InSQL(db *sqlx.DB, write func(ctx context.Context, tx any, records []outbox.Record) error) func(context.Context, []outbox.Record) (Tx, error) {
	return func(ctx context.Context, records []outbox.Record) (Tx, error) {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return nil, err
		}
		if err := write(ctx, tx, records); err != nil {
			return nil, errors.Join(err, tx.Rollback())
		}
		return tx, nil
	}
}

// Run runs the whole suite. newHarness is called once for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	groups := []struct {
		name  string
		tests []test
	}{
		{"Fetch", fetchTests},
		{"Lanes", laneTests},
		{"Failed", failedTests},
		{"Desk", deskTests},
		{"Wake", wakeTests},
		{"Relay", relayTests},
		{"RelayFaults", relayFaultTests},
		{"RelayFailures", relayFailureTests},
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
	// long is a lease that does not end within a test.
	long = 10 * time.Minute
	// short is a lease that ends within a test.
	short = 600 * time.Millisecond
	// patience is how long something that must happen may take on a busy machine.
	patience = 30 * time.Second
)

// elapse lets the store's clock run on by d.
func (h Harness) elapse(d time.Duration) {
	if h.Advance != nil {
		h.Advance(d)
		return
	}
	time.Sleep(d)
}

// record makes a record without ordering key.
func record(topic, key string) outbox.Record {
	return outbox.Record{
		Topic: topic, UUID: envelope.NewUUID(), Key: key,
		Metadata: map[string]string{envelope.KeyHeader: key}, Payload: []byte(key),
	}
}

// ordered makes n records of one ordering key, the payloads of which are their numbers.
func ordered(topic, orderingKey string, from, n int) []outbox.Record {
	records := make([]outbox.Record, n)
	for i := range records {
		r := record(topic, fmt.Sprintf("%s-%03d", orderingKey, from+i))
		r.OrderingKey = orderingKey
		records[i] = r
	}
	return records
}

func plain(topic, prefix string, n int) []outbox.Record {
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = record(topic, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return records
}

func (h Harness) commit(t *testing.T, records ...outbox.Record) {
	t.Helper()
	require.NoError(t, h.Commit(t.Context(), records))
}

// lanes acquires every lane for owner.
func lanes(t *testing.T, src outbox.Source, owner string, lease time.Duration) []outbox.Lane {
	t.Helper()
	got, err := src.AcquireLanes(t.Context(), owner, lease)
	require.NoError(t, err)
	require.Len(t, got, outbox.Lanes, "a single owner gets every lane")
	return got
}

// fetched is a record with the lane that it was found in.
type fetched struct {
	outbox.Record
	lane outbox.Lane
}

// fetch reads all of the lanes, lane by lane.
func fetch(t *testing.T, src outbox.Source, lanes []outbox.Lane, limit int) []fetched {
	t.Helper()
	var all []fetched
	for _, lane := range lanes {
		records, err := src.Fetch(t.Context(), lane, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(records), limit)
		for _, r := range records {
			all = append(all, fetched{r, lane})
		}
	}
	return all
}

func keys(records []fetched) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = r.Key
	}
	return out
}

// find returns the record of key.
func find(t *testing.T, records []fetched, key string) fetched {
	t.Helper()
	for _, r := range records {
		if r.Key == key {
			return r
		}
	}
	require.Failf(t, "record not found", "%s in %v", key, keys(records))
	return fetched{}
}

// eventually waits for check to return nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 160*time.Millisecond) { // a look can be dear for the server of the tests
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "not within %s", patience)
		}
		time.Sleep(pause)
	}
}

// empty waits until nothing at all is left in the outbox.
func empty(t *testing.T, src outbox.Source) {
	t.Helper()
	eventually(t, func() error {
		s, err := src.Status(t.Context())
		if err == nil && s.Pending+s.Delayed+s.Aside > 0 {
			err = fmt.Errorf("still in the outbox: %+v", s)
		}
		return err
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
