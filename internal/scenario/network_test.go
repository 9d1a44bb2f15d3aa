package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/internal/testenv/smtpsink"
)

// TestNetworkFaults breaks the network between two replicas and one of their servers in every way and both directions, while payments flow, each
// published two or three times: every payment is made once, and work goes on after each fault.
func TestNetworkFaults(t *testing.T) {
	for _, server := range []struct {
		name   string
		broker string
		// between puts a proxy before the server, and gives what makes the replicas go through it. The test itself goes straight to the server.
		between func(t *testing.T, s *system) (proxy *testenv.TCPProxy, setting string)
	}{
		{"rabbitmq", "rabbitmq-quorum", func(t *testing.T, s *system) (*testenv.TCPProxy, string) {
			return behindProxy(t, s.settings["brokers"].(node)["rabbitmq"].(node)["url"].(string), "ONCEMILL_BROKERS__RABBITMQ__URL")
		}},
		{"kafka", "kafka", func(t *testing.T, s *system) (*testenv.TCPProxy, string) {
			server, proxy := testenv.KafkaBehindProxy(t)
			s.set("brokers/kafka/brokers", []string{server.Address})
			return proxy, "ONCEMILL_BROKERS__KAFKA__BROKERS=" + proxy.Addr
		}},
		{"postgres", "nats", func(t *testing.T, s *system) (*testenv.TCPProxy, string) {
			return behindProxy(t, s.settings["databases"].(node)["postgres"].(node)["dsn"].(string), "ONCEMILL_DATABASES__POSTGRES__DSN")
		}},
		{"nats", "nats", func(t *testing.T, s *system) (*testenv.TCPProxy, string) {
			return behindProxy(t, s.settings["brokers"].(node)["nats"].(node)["url"].(string), "ONCEMILL_BROKERS__NATS__URL")
		}},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, server.broker, "postgres")
			sink := smtpsink.Start(t, smtpsink.Options{AbsorbRepeats: true})
			s.mailTo(sink)
			proxy, setting := server.between(t, s)
			db := s.db()
			payments := s.payUnderFaults(proxy, setting, 16<<10, 16<<10, func() int64 { return number(t, db, `SELECT count(*) FROM payments`) })
			testenv.Eventually(t, 2*time.Minute, func() error { return settled(t, db, int64(payments)) })
			s.checkBooks(db, payments)
			s.checkLetters(sink, payments)
		})
	}
	t.Run("smtp", func(t *testing.T) {
		t.Parallel()
		s := newSystem(t, "rabbitmq-classic", "postgres")
		// A server that takes its time: faults meet letters that it has and has not confirmed.
		sink := smtpsink.Start(t, smtpsink.Options{Faults: smtpsink.Faults{Delay: 50 * time.Millisecond}})
		s.mailTo(sink)
		s.set("bindings/email", node{"unknown_outcome": "park", "retry": node{"first": "200ms", "max": "1s", "attempts": 100}})
		proxy := testenv.Proxy(t, sink.Addr())
		_, port := split(t, proxy.Addr)
		db := s.db()
		payments := s.payUnderFaults(proxy, fmt.Sprintf("ONCEMILL_PLUGINS__EMAIL__CONFIG__SMTP__PORT=%d", port), 400, 300, func() int64 {
			return number(t, db, `SELECT count(*) FROM processed_events WHERE scope LIKE '%/email' AND status <> 'in_progress'`)
		})
		checkDoubts(t, db, sink, payments)
	})
}

// behindProxy puts a proxy before the server at address, a URL, and gives a variable with the address of the proxy.
func behindProxy(t *testing.T, address, variable string) (proxy *testenv.TCPProxy, setting string) {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	proxy = testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	return proxy, variable + "=" + u.String()
}

// networkFault is a fault of one direction and the end of it.
type networkFault struct {
	name       string
	begin, end func(*testenv.TCPProxy)
}

// networkFaults are all of them in a random order. Connections are cut after up to so many bytes.
func networkFaults(random *rand.Rand, toServer, toClient int) []networkFault {
	var all []networkFault
	resume := (*testenv.TCPProxy).Resume
	for _, d := range testenv.Directions {
		most := toServer
		if d == testenv.ToClient {
			most = toClient
		}
		early, late := 1+random.IntN(most/10), 1+random.IntN(most)
		silence := func(p *testenv.TCPProxy) { p.Hold(d) }
		for _, f := range []networkFault{
			{"cut before anything", func(p *testenv.TCPProxy) { p.CutAfter(d, 0) }, resume},
			{fmt.Sprintf("cut after %d bytes", early), func(p *testenv.TCPProxy) { p.CutAfter(d, early) }, resume},
			{fmt.Sprintf("cut after %d bytes", late), func(p *testenv.TCPProxy) { p.CutAfter(d, late) }, resume},
			{"delay", func(p *testenv.TCPProxy) { p.Delay(d, 100*time.Millisecond) }, resume},
			{"silence until all is let through", silence, resume},
			{"silence until a cut", silence, func(p *testenv.TCPProxy) { p.Cut(); p.Resume(); p.Restore() }},
		} {
			f.name += " " + string(d)
			all = append(all, f)
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// payUnderFaults starts two replicas with the setting that leads through the proxy, and goes through all faults while payments
// are published. It returns how many there were, when work has gone on after the last one. done counts what is done; toServer and toClient are
// the most bytes after which connections are cut.
func (s *system) payUnderFaults(proxy *testenv.TCPProxy, setting string, toServer, toClient int, done func() int64) (payments int) {
	t := s.t
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s.write()
	replicas := []*replica{s.replica("a", false), s.replica("b", false)}
	for _, r := range replicas {
		r.env = append(r.env, setting)
		r.start()
		r.ready()
	}
	s.openAccounts(s.db())

	enough, sent := make(chan struct{}), make(chan error, 1)
	producer := s.open()
	go func() {
		var err error
		payments, err = payUntil(enough, producer)
		sent <- err
	}()
	for _, f := range networkFaults(random, toServer, toClient) {
		begin := time.Now()
		f.begin(proxy)
		testenv.Eventually(t, time.Minute, func() error { return atLeast(int64(proxy.Met()), 1, "connections that met "+f.name) })
		time.Sleep(time.Duration(100+random.IntN(300)) * time.Millisecond) // how long the fault lasts
		met := proxy.Met()
		f.end(proxy)
		end, before := time.Now(), done()
		testenv.Eventually(t, time.Minute, func() error { return atLeast(done(), before+1, "done after "+f.name) })
		t.Logf("%s for %s, met %d times; work went on after %s", f.name, end.Sub(begin).Round(time.Millisecond), met, time.Since(end).Round(time.Millisecond))
	}
	close(enough)
	require.NoError(t, <-sent)
	testenv.Eventually(t, 2*time.Minute, func() error { return atLeast(done(), int64(payments), "done") })
	for _, r := range replicas {
		r.ready()
	}
	return payments
}

// payUntil publishes payments, each two or three times, and returns how many they were.
func payUntil(enough <-chan struct{}, b broker.Broker) (payments int, err error) {
	const batch = 4
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for {
		var events []event
		for n := payments; n < payments+batch; n++ {
			for range 2 + n%2 {
				events = append(events, payment(n))
			}
		}
		rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		if err := send(ctx, b, events); err != nil {
			return payments, err
		}
		payments += batch
		select {
		case <-enough:
			return payments, nil
		case <-time.After(50 * time.Millisecond): // a steady flow, which the faults meet at any step
		}
	}
}

// checkDoubts checks that no letter was sent twice, and that each was sent, or waits in doubt for a person.
func checkDoubts(t *testing.T, db *sqlx.DB, sink *smtpsink.Sink, payments int) {
	t.Helper()
	const doubts = `SELECT count(*) FROM processed_events WHERE scope LIKE '%/email' AND status = 'in_doubt'`
	testenv.Eventually(t, time.Minute, func() error {
		return expect(number(t, db, `SELECT count(*) FROM letters`)+number(t, db, doubts), int64(payments), "letters sent or in doubt")
	})
	require.Zero(t, number(t, db, `SELECT count(*) FROM processed_events WHERE status NOT IN ('completed', 'in_doubt')`))
	require.Equal(t, number(t, db, doubts), number(t, db, `SELECT count(*) FROM parked WHERE state = 'in_doubt' AND reason = 'outcome-unknown'`))
	require.Equal(t, number(t, db, doubts), number(t, db, `SELECT count(*) FROM parked`), "nothing else waits or is dead")
	arrived := map[string]int{}
	for _, letter := range sink.Letters() {
		arrived[letter.MessageID]++
		require.Equal(t, 1, arrived[letter.MessageID], "letter %s", letter.MessageID)
	}
	var recorded []string
	require.NoError(t, db.Select(&recorded, `SELECT message_id FROM letters`))
	for _, id := range recorded {
		require.Contains(t, arrived, id, "a letter that was recorded was sent")
	}
	t.Logf("%d letters arrived, %d of %d are in doubt", len(arrived), number(t, db, doubts), payments)
}
