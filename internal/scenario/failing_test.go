package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// combinations is one database for each broker: what is tested does not depend on the pair.
var combinations = [][2]string{{"embedded", "sqlite"}, {"rabbitmq-classic", "sqlite"}, {"rabbitmq-quorum", "postgres"}, {"kafka", "postgres"}, {"sql-postgres", "postgres"}, {"sql-mysql", "mysql"}, {"sqs", "sqlite"}}

func onEveryBroker(t *testing.T, test func(t *testing.T, s *system)) {
	for _, c := range combinations {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			test(t, newSystem(t, c[0], c[1]))
		})
	}
}

// TestF067FailingMessagesHoldNothing sends a hundred messages that always fail among a thousand good ones: the good ones are
// done while all bad ones wait, off the broker and out of the handlers' slots.
func TestF067FailingMessagesHoldNothing(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, s *system) {
		const bad, good = 100, 1000
		s.set("bindings/tally/retry", node{"first": "60s"})
		s.set("bindings/tally/concurrency", 8)
		s.write()
		r := s.replica("a", true)
		r.start()
		r.ready()
		var events []event
		for n := range bad {
			events = append(events, task(fmt.Sprintf("bad-%03d", n), `,"fail_for":1000000`))
		}
		for n := range good {
			events = append(events, task(fmt.Sprintf("good-%04d", n), ""))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, send(ctx, s.open(), events))
		db := s.db()
		testenv.Eventually(t, 45*time.Second, func() error {
			return expect(number(t, db, completedTallies), good, "good messages")
		})
		testenv.Eventually(t, 30*time.Second, func() error {
			return expect(number(t, db, `SELECT count(*) FROM parked WHERE state = 'waiting'`), bad, "bad messages that wait")
		})
		s.emptyQueues(t, map[string]string{"tally": tallyTopic})
		for name, n := range s.runs() {
			if strings.HasPrefix(name, "bad-") {
				require.Less(t, n, 12, "runs of %s within its first second", name)
			}
		}
	})
}

// TestF042MessageThatKillsItsProcess runs a message that ends the process each time, among a hundred innocent ones, under a
// supervisor: after at most six crashes it is a dead letter, and the innocent are done, none of them buried.
func TestF042MessageThatKillsItsProcess(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, s *system) {
		const innocent = 100
		s.write()
		r := s.replica("a", true)
		r.start()
		r.ready()
		var events []event
		for n := range innocent {
			if n == innocent/2 {
				events = append(events, task("killer", `,"kill":true`))
			}
			events = append(events, task(fmt.Sprintf("innocent-%03d", n), `,"sleep_ms":5`))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, send(ctx, s.open(), events))

		db := s.db()
		crashes := r.supervise(func() bool {
			return number(t, db, completedTallies) == innocent && number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead'`) == 1
		}, 4*time.Minute)
		require.LessOrEqual(t, crashes, 6)
		var reason, key string
		require.NoError(t, db.QueryRow(`SELECT reason FROM parked WHERE state = 'dead'`).Scan(&reason))
		require.Equal(t, "crashed", reason)
		require.NoError(t, db.QueryRow(`SELECT idempotency_key FROM processed_events WHERE status = 'failed'`).Scan(&key))
		require.Equal(t, "killer", key)
		require.Zero(t, number(t, db, `SELECT count(*) FROM parked WHERE state <> 'dead'`))
	})
}

// TestStoppedLongerThanRetention stops the consumer for longer than its keys are kept, with copies of what it has done in the queue: the keys
// must still be there when the copies arrive, although clean-up runs all the time.
func TestStoppedLongerThanRetention(t *testing.T) {
	// Only a broker without a bound to its redeliveries can come to this: with the others a retention that is shorter is refused.
	for _, c := range [][2]string{{"rabbitmq-classic", "sqlite"}, {"rabbitmq-quorum", "postgres"}} {
		t.Run(c[0], func(t *testing.T) {
			t.Parallel()
			const count = 300
			s := newSystem(t, c[0], c[1])
			s.set("retention", node{"clean_every": "1h"})
			s.set("bindings/tally", node{"retention": "3s", "retry": node{"attempts": 2, "first": "100ms", "max": "200ms"}})
			s.write()
			r := s.replica("a", true)
			r.start()
			r.ready()
			events := tasks(count, "")
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			producer := s.open()
			require.NoError(t, send(ctx, producer, events))
			db := s.db()
			testenv.Eventually(t, time.Minute, func() error { return expect(number(t, db, completedTallies), count, "tasks") })
			r.kill()
			require.NoError(t, send(ctx, producer, events))
			testenv.Eventually(t, time.Minute, func() error {
				return expect(number(t, db, expired(s.database)), count, "keys past their time")
			})
			s.set("retention", node{"clean_every": "50ms"})
			s.write()
			r.start()
			r.ready()
			testenv.Eventually(t, time.Minute, func() error { return expect(number(t, db, completedTallies), 0, "keys after the clean-up") })
			for name, n := range s.runs() {
				require.Equal(t, 1, n, "runs of %s", name)
			}
		})
	}
}

// expired counts the keys whose time is over, by the database's clock.
func expired(database string) string {
	now := "now()"
	if database == "sqlite" {
		now = `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`
	}
	return `SELECT count(*) FROM processed_events WHERE scope LIKE '%/tally' AND expires_at < ` + now
}
