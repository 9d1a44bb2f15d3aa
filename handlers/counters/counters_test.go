package counters_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/counters"
	"github.com/oncemill/oncemill/handlers/internal/txtest"
)

// counting runs a test on each database and checks at its end that totals are the sums of their events.
func counting(t *testing.T, run func(t *testing.T, db *txtest.DB)) {
	txtest.Each(t, counters.Plugin(), "", func(t *testing.T, db *txtest.DB) {
		run(t, db)
		require.Equal(t, "0", db.Text(`SELECT count(*) FROM counters c WHERE total <>
			(SELECT coalesce(sum(delta), 0) FROM counter_events e WHERE e.counter = c.name)`))
	})
}

func add(db *txtest.DB, key, counter, delta string) error {
	return db.Deliver("counters.add", key, fmt.Sprintf(`{"counter":%q,"delta":%s}`, counter, delta)).Err
}

// total returns the counter's value as text, so that a float would show.
func total(db *txtest.DB, counter string) string {
	return db.Text(`SELECT CAST(total AS text) FROM counters WHERE name = ?`, counter)
}

func TestF075Overflow(t *testing.T) {
	counting(t, func(t *testing.T, db *txtest.DB) {
		require.NoError(t, add(db, "k1", "c", "9223372036854775806"))
		require.NoError(t, add(db, "k2", "c", "1"))
		txtest.RequirePermanent(t, add(db, "k3", "c", "1"), "counter-overflow")
		txtest.RequirePermanent(t, add(db, "k4", "c", "9223372036854775807"), "counter-overflow")
		require.Equal(t, "9223372036854775807", total(db, "c"))
		if db.Dialect == "sqlite" {
			require.Equal(t, "integer", db.Text(`SELECT typeof(total) FROM counters`))
		}
		require.Equal(t, "2", db.Text(`SELECT count(*) FROM counter_events`), "a refused addition leaves no event")
	})
}

func TestF075BadDeltas(t *testing.T) {
	counting(t, func(t *testing.T, db *txtest.DB) {
		for _, delta := range []string{`-5`, `"abc"`, `9223372036854775808`, `"9223372036854775808"`, `0`, `1.5`, `1e3`, `"+5"`, `""`, `" 5"`, `null`, `true`, `[1]`, `{}`} {
			txtest.RequirePermanent(t, add(db, "k", "c", delta), "delta")
		}
		txtest.RequirePermanent(t, db.Deliver("counters.add", "k", `{"counter":"c"}`).Err, "delta")
		txtest.RequirePermanent(t, db.Deliver("counters.add", "k", `{"delta":1}`).Err, "counter")
		txtest.RequirePermanent(t, db.Deliver("counters.add", "k", `{"counter":"c\u0000","delta":1}`).Err, "counter")
		txtest.RequirePermanent(t, add(db, "k", fmt.Sprintf("%0256d", 0), "1"), "counter")
		txtest.RequirePermanent(t, db.Deliver("counters.add", "k", `delta`).Err, "payload-not-json")
		require.Equal(t, "0", db.Text(`SELECT count(*) FROM counter_events`))
		require.NoError(t, add(db, "k", "c", `"5"`))
		require.Equal(t, "5", total(db, "c"))
	})
}

// A thousand additions by four workers, a third of them twice: what has been counted is never counted again.
func TestF075RivalsAndDuplicates(t *testing.T) {
	const keys, workers = 1000, 4
	counting(t, func(t *testing.T, db *txtest.DB) {
		db.SetMaxOpenConns(workers)
		jobs := make(chan int)
		var running sync.WaitGroup
		var mu sync.Mutex
		counted, refused := map[int]int{}, []error{}
		for range workers {
			running.Go(func() {
				for n := range jobs {
					err := add(db, fmt.Sprint("k", n), "c", "1")
					mu.Lock()
					if err == nil {
						counted[n]++
					} else {
						refused = append(refused, err)
					}
					mu.Unlock()
				}
			})
		}
		duplicates := 0
		for n := range keys {
			jobs <- n
			if n%3 == 0 {
				jobs <- n
				duplicates++
			}
		}
		close(jobs)
		running.Wait()
		require.Len(t, counted, keys)
		require.Len(t, refused, duplicates)
		for _, err := range refused {
			txtest.RequirePermanent(t, err, "counter-event-exists")
		}
		require.Equal(t, "1000", total(db, "c"))
	})
}

func TestCompletedPaymentsAreCounted(t *testing.T) {
	counting(t, func(t *testing.T, db *txtest.DB) {
		for i, p := range []string{
			`{"payment_id":"1","status":"completed","from":"alice","to":"bob","amount":"1.00","currency":"EUR"}`,
			`{"payment_id":"2","status":"completed","from":"alice","to":"bob","amount":"1.00","currency":"USD"}`,
			`{"payment_id":"3","status":"completed","from":"bob","to":"{currency}","amount":"1.00","currency":"EUR"}`,
		} {
			require.NoError(t, db.Deliver("payments.completed", fmt.Sprint(i), p).Err)
		}
		require.Equal(t, "3", total(db, "payments.completed"))
		require.Equal(t, "2", total(db, "payments.completed:EUR"))
		require.Equal(t, "1", total(db, "payments.completed:USD"))
		require.Equal(t, "1", total(db, "payments.completed:EUR:alice"))
		txtest.RequirePermanent(t, db.Deliver("payments.completed", "9", `{"from":"alice"}`).Err, "currency")
	})
}

func TestCountersFromConfiguration(t *testing.T) {
	txtest.Each(t, counters.Plugin(), "per_payment: ['to:{to}', 'to:{from}', 'fix']", func(t *testing.T, db *txtest.DB) {
		d := db.Deliver("payments.completed", "k", `{"from":"x","to":"{from}"}`)
		require.NoError(t, d.Err)
		require.JSONEq(t, `{"counters":["fix","to:x","to:{from}"],"delta":1}`, string(d.Result), "a field is not expanded again")
		require.NoError(t, db.Deliver("payments.completed", "k2", `{"from":"x","to":"x"}`).Err)
		require.Equal(t, "2", total(db, "to:x"), "one name counts once for a payment")
	})
	txtest.Each(t, counters.Plugin(), "per_payment: []", func(t *testing.T, db *txtest.DB) {
		require.NoError(t, db.Deliver("payments.completed", "k", `{}`).Err)
	})
	for _, bad := range []string{"", "{amount}", "a{", "{from"} {
		require.ErrorContains(t, counters.Config{PerPayment: []string{bad}}.Validate(), "per_payment[0]")
	}
	require.NoError(t, counters.Config{}.Defaults().Validate())
}
