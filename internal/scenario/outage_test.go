package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// resumption is how soon after the return of a broker or database messages must be handled again.
const resumption = 15 * time.Second

// TestF046BrokerRestart restarts the broker in mid-load, cleanly and by a crash: consuming resumes by itself, nothing is lost or doubled.
func TestF046BrokerRestart(t *testing.T) {
	for _, broker := range []string{"rabbitmq", "kafka", "sql"} {
		t.Run(broker, func(t *testing.T) {
			service := broker
			if broker == "sql" {
				service = "postgres"
			}
			server := testenv.Private(t, service)
			s := newSystem(t, "embedded", "postgres")
			s.broker, s.settings["broker"] = broker, broker
			switch broker {
			case "rabbitmq":
				s.settings["brokers"] = node{broker: node{"url": server.Address}}
			case "kafka":
				s.settings["brokers"] = node{broker: node{"brokers": []string{server.Address}}}
			default:
				s.settings["brokers"] = node{broker: node{"dsn": server.Address}}
			}
			s.outage(func(n int) {
				if n == 0 {
					server.Stop()
				} else {
					server.Crash()
				}
				server.Start()
			})
		})
	}
}

// TestEmbeddedBrokerLosesItsProcess kills the replica that serves the embedded broker: the other one takes the folder over and goes on.
func TestEmbeddedBrokerLosesItsProcess(t *testing.T) {
	s := newSystem(t, "embedded", "sqlite")
	s.outage(nil)
}

// TestF044DatabaseRestart restarts PostgreSQL in mid-load, cleanly and by a crash.
func TestF044DatabaseRestart(t *testing.T) {
	server := testenv.Private(t, "postgres")
	s := newSystem(t, "rabbitmq-quorum", "postgres")
	s.settings["databases"] = node{"postgres": node{"dsn": server.Address}}
	s.outage(func(n int) {
		if n == 0 {
			server.Stop()
		} else {
			server.Crash()
		}
		server.Start()
	})
}

// outage sends tasks while restart (or, where it is nil, a kill of the first replica) disturbs the system twice, and checks that work goes on soon and that every task was done exactly once.
func (s *system) outage(restart func(n int)) {
	t := s.t
	const count = 3000
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
	for n := range 2 {
		testenv.Eventually(t, time.Minute, func() error {
			return atLeast(number(t, db, completedTallies), int64(count*(n+1)/6), "tasks before the restart")
		})
		if restart == nil {
			replicas[0].kill()
			replicas[0].start()
		} else {
			restart(n)
		}
		back := time.Now()
		var before int64
		testenv.Eventually(t, resumption, func() error { return db.Get(&before, completedTallies) })
		testenv.Eventually(t, resumption-time.Since(back), func() error {
			var now int64
			if err := db.Get(&now, completedTallies); err != nil {
				return err
			}
			return atLeast(now, before+1, "tasks after the return")
		})
		t.Logf("restart %d: work resumed %s after the return", n+1, time.Since(back).Round(10*time.Millisecond))
	}
	<-sent
	testenv.Eventually(t, 2*time.Minute, func() error { return expect(number(t, db, completedTallies), count, "tasks") })
	require.Zero(t, number(t, db, `SELECT count(*) FROM parked WHERE state <> 'waiting'`), "an outage makes no dead letter")
	for _, r := range replicas {
		r.ready()
		r.stop()
	}
}
