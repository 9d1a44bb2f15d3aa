package scenario

import (
	"context"
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

// TestNetworkFaults has a network between the application and one of its servers that breaks in every way: connections that are cut before and after some
// bytes of a direction, answers and questions that are lost or come late, and silence. Payments flow meanwhile, each sent two or three times over the same network;
// in the end each has happened once.
func TestNetworkFaults(t *testing.T) {
	proxied := func(t *testing.T, address string) (*testenv.TCPProxy, string) {
		u, err := url.Parse(address)
		require.NoError(t, err)
		p := testenv.Proxy(t, u.Host)
		u.Host = p.Addr
		return p, u.String()
	}
	for _, server := range []struct {
		name, broker, database string
		between                func(t *testing.T, s *system, sink *smtpsink.Sink) *testenv.TCPProxy
	}{
		{"postgres", "embedded", "postgres", func(t *testing.T, s *system, _ *smtpsink.Sink) *testenv.TCPProxy {
			p, dsn := proxied(t, s.settings["databases"].(node)["postgres"].(node)["dsn"].(string))
			s.set("databases/postgres/dsn", dsn)
			return p
		}},
		{"rabbitmq", "rabbitmq-quorum", "sqlite", func(t *testing.T, s *system, _ *smtpsink.Sink) *testenv.TCPProxy {
			p, address := proxied(t, testenv.RabbitMQ(t).URL)
			s.set("brokers/rabbitmq/url", address)
			return p
		}},
		{"kafka", "kafka", "sqlite", func(t *testing.T, s *system, _ *smtpsink.Sink) *testenv.TCPProxy {
			p := testenv.ProxiedKafka(t)
			s.set("brokers/kafka/brokers", []string{p.Addr})
			return p
		}},
		{"nats", "nats", "sqlite", func(t *testing.T, s *system, _ *smtpsink.Sink) *testenv.TCPProxy {
			p, address := proxied(t, testenv.NATS(t))
			s.set("brokers/nats/url", address)
			return p
		}},
		{"smtp", "embedded", "sqlite", func(t *testing.T, s *system, sink *smtpsink.Sink) *testenv.TCPProxy {
			p := testenv.Proxy(t, sink.Addr())
			host, port := split(t, p.Addr)
			s.set("plugins/email/config/smtp/host", host)
			s.set("plugins/email/config/smtp/port", port)
			return p
		}},
	} {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, server.broker, server.database)
			sink := smtpsink.Start(t, smtpsink.Options{AbsorbRepeats: true})
			s.mailTo(sink)
			for _, binding := range []string{"email", "email-requested"} {
				s.set("bindings/"+binding+"/retry", node{"attempts": 100, "first": "100ms", "max": "500ms"}) // a network that fails is its matter
			}
			db := s.db() // past the proxy
			s.payOver(server.between(t, s, sink), db, sink)
		})
	}
}

// fault is a way in which a network fails, and how that ends.
type fault struct {
	what        string
	strike, end func(p *testenv.TCPProxy)
}

// faults are all of them; rnd says after how many bytes a connection is cut.
func faults(rnd *rand.Rand) []fault {
	resume := (*testenv.TCPProxy).Resume
	all := []fault{
		{"cut", (*testenv.TCPProxy).Cut, (*testenv.TCPProxy).Restore},
		{"late", func(p *testenv.TCPProxy) { p.Latency(300 * time.Millisecond) }, resume},
	}
	for _, d := range testenv.Directions() {
		some := rnd.Int64N(2000)
		all = append(all,
			fault{"cut at once " + string(d), func(p *testenv.TCPProxy) { p.CutAfter(d, 0) }, resume},
			fault{"cut after some bytes " + string(d), func(p *testenv.TCPProxy) { p.CutAfter(d, some) }, resume},
			fault{"held back " + string(d), func(p *testenv.TCPProxy) { p.Hold(d) }, resume},
			fault{"silence " + string(d), func(p *testenv.TCPProxy) { p.Silence(d) }, resume},
		)
	}
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// payOver breaks the network in every way while payments flow, and checks the books.
func (s *system) payOver(p *testenv.TCPProxy, db *sqlx.DB, sink *smtpsink.Sink) {
	t := s.t
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s.write()
	replicas := []*replica{s.replica("a", false), s.replica("b", false)}
	for _, r := range replicas {
		r.start()
		r.ready()
	}
	s.openAccounts(db)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	sent := make(chan int, 1)
	producer := s.open()
	go func() { sent <- s.payUntil(ctx, producer) }()
	for _, f := range faults(rnd) {
		before := number(t, db, `SELECT count(*) FROM payments`)
		f.strike(p)
		time.Sleep(time.Duration(200+rnd.IntN(1000)) * time.Millisecond) // how long the network is like that
		f.end(p)
		healed := time.Now()
		testenv.Eventually(t, time.Minute, func() error {
			return atLeast(number(t, db, `SELECT count(*) FROM payments`), before+1, "payments after "+f.what)
		})
		t.Logf("%s: payments %s after its end", f.what, time.Since(healed).Round(10*time.Millisecond))
	}
	stop()
	payments := <-sent
	testenv.Eventually(t, 2*time.Minute, func() error { return settled(t, db, int64(payments)) })
	s.checkBooks(db, payments)
	s.checkLetters(sink, payments)
	t.Logf("%d payments", payments)
	for _, r := range replicas {
		r.stop()
	}
}

// payUntil sends payments until ctx ends, each two or three times, and returns how many there are.
func (s *system) payUntil(ctx context.Context, b broker.Broker) int {
	n := 0
	for ctx.Err() == nil {
		var events []event
		for range 5 {
			for range 2 + n%2 {
				events = append(events, payment(n))
			}
			n++
		}
		if err := send(context.WithoutCancel(ctx), b, events); err != nil {
			s.t.Error(err)
			return n
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return n
}
