package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// completedTallies counts the keys of the counting handler that are completed.
const completedTallies = `SELECT count(*) FROM processed_events WHERE scope LIKE '%/tally' AND status = 'completed'`

// TestGracefulRestartsRunNothingTwice stops replicas eight times under load: what runs finishes and is acked, the rest goes back, so no
// handler runs a second time, and no innocent message becomes a dead letter.
func TestGracefulRestartsRunNothingTwice(t *testing.T) {
	for _, combination := range [][2]string{{"embedded", "sqlite"}, {"rabbitmq-classic", "postgres"}, {"rabbitmq-quorum", "postgres"}, {"kafka", "postgres"}, {"nats", "postgres"}, {"sql-postgres", "postgres"}, {"sql-mysql", "mysql"}, {"sqs", "sqlite"}} {
		t.Run(combination[0], func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, combination[0], combination[1])
			count := 1600
			if s.broker == "sqs" {
				count = 240 // moto looks at every message of a queue in each request
			}
			s.write()
			replicas := []*replica{s.replica("a", true), s.replica("b", true)}
			for _, r := range replicas {
				r.start()
				r.ready()
			}
			events := tasks(count, `,"sleep_ms":10`)
			sent := make(chan struct{})
			go func() { defer close(sent); s.sendFromSeveral(2, events) }()
			db := s.db()
			for n := range int64(8) {
				testenv.Eventually(t, time.Minute, func() error {
					return atLeast(number(t, db, completedTallies), int64(count)*(n+1)/10, "tasks before the next stop")
				})
				r := replicas[n%2]
				r.stop()
				require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE status = 'in_progress'`))
				r.start()
				r.ready()
			}
			<-sent
			testenv.Eventually(t, 2*time.Minute, func() error {
				return expect(number(t, db, completedTallies), int64(count), "tasks")
			})
			runs := s.runs()
			require.Len(t, runs, count)
			for name, n := range runs {
				require.Equal(t, 1, n, "runs of %s", name)
			}
			require.Zero(t, number(t, db, `SELECT count(*) FROM parked`))
		})
	}
}
