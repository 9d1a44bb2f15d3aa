package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// cluster is three servers of one JetStream cluster, in the domain "hub".
type cluster struct {
	t       *testing.T
	dir     string
	routes  []*url.URL
	servers []*server.Server
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir()}
	for range 3 {
		c.routes = append(c.routes, &url.URL{Scheme: "nats-route", Host: testenv.FreeAddress(t)})
	}
	for n := range 3 {
		s, err := server.NewServer(c.member(n))
		require.NoError(t, err)
		c.servers = append(c.servers, s)
		s.Start()
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			s.Shutdown()
			s.WaitForShutdown()
		}
	})
	c.awaitLeader()
	return c
}

// member makes the options of a server.
func (c *cluster) member(n int) *server.Options {
	port, err := strconv.Atoi(c.routes[n].Port())
	require.NoError(c.t, err)
	return &server.Options{
		ServerName: fmt.Sprintf("n%d", n), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, JetStreamDomain: "hub", StoreDir: filepath.Join(c.dir, fmt.Sprint(n)), Tags: []string{"disk:fast"},
		Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port},
		Routes:  slices.Delete(slices.Clone(c.routes), n, n+1),
	}
}

// awaitLeader waits until the servers know each other and have elected one.
func (c *cluster) awaitLeader() {
	c.t.Helper()
	testenv.Eventually(c.t, time.Minute, func() error {
		leaders := 0
		for _, s := range c.servers {
			if s.Running() && s.JetStreamIsLeader() {
				leaders++
			}
			if s.Running() && !s.JetStreamIsCurrent() {
				return fmt.Errorf("%s is behind", s.Name())
			}
		}
		if leaders != 1 {
			return fmt.Errorf("%d leaders", leaders)
		}
		return nil
	})
}

func (c *cluster) urls() string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.ClientURL())
	}
	return strings.Join(all, ",")
}

func (c *cluster) open(more func(*Config)) *Broker {
	return openTest(c.t, Factory(), func(cfg *Config) {
		cfg.URL, cfg.Replicas, cfg.Domain, cfg.AckWait = c.urls(), 3, "hub", 5*time.Second
		cfg.Placement = Placement{Cluster: "c", Tags: []string{"disk:fast"}}
		if more != nil {
			more(cfg)
		}
	}, "").(*Broker)
}

// restart stops a server without mercy for its clients, waits until the others have another leader of the stream, and starts it again on
// its addresses.
func (c *cluster) restart(name, stream string) {
	c.t.Helper()
	for n, s := range c.servers {
		if s.Name() != name {
			continue
		}
		o := c.member(n)
		_, port, _ := strings.Cut(strings.TrimPrefix(s.ClientURL(), "nats://"), ":")
		_, err := fmt.Sscan(port, &o.Port)
		require.NoError(c.t, err)
		s.Shutdown()
		s.WaitForShutdown()
		testenv.Eventually(c.t, time.Minute, func() error {
			for _, other := range c.servers {
				if other != s && other.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
					return nil
				}
			}
			return errors.New("the stream has no leader yet")
		})
		again, err := server.NewServer(o)
		require.NoError(c.t, err)
		again.Start()
		c.servers[n] = again
		return
	}
	require.FailNow(c.t, "no server is called "+name)
}

// The leader of the stream dies twice in mid-load: each message that was published comes, and what comes twice says so, or was sent twice.
func TestClusterLosesItsLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	b := c.open(nil)
	t.Cleanup(func() { _ = b.Close() })
	topic := testenv.Name(t, "cluster")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	require.NoError(t, b.Declare(ctx, topic, []broker.Subscription{{Group: "g"}}))
	place := b.cfg.place(topic)
	leader := func() string {
		name := ""
		testenv.Eventually(t, time.Minute, func() error {
			stream, err := b.link.js.Stream(t.Context(), place.stream)
			if err != nil {
				return err
			}
			require.NotNil(t, stream.CachedInfo().Cluster)
			require.Equal(t, []string{"disk:fast"}, stream.CachedInfo().Config.Placement.Tags)
			if name = stream.CachedInfo().Cluster.Leader; name == "" {
				return fmt.Errorf("the stream has no leader")
			}
			return nil
		})
		return name
	}

	var mu sync.Mutex
	came := map[string]int{}
	unmarked := map[string]bool{} // came again without being marked
	var running sync.WaitGroup
	for range 2 {
		replica := c.open(nil)
		t.Cleanup(func() { _ = replica.Close() })
		sub, err := replica.Subscriber(broker.Subscription{Topic: topic, Group: "g", InFlight: 64})
		require.NoError(t, err)
		msgs, err := sub.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		running.Go(func() {
			for msg := range msgs {
				mu.Lock()
				came[msg.UUID]++
				if came[msg.UUID] > 1 && !envelope.DeliveryFrom(msg.Context()).Redelivered {
					unmarked[msg.UUID] = true
				}
				mu.Unlock()
				msg.Ack()
			}
		})
		t.Cleanup(func() { _ = sub.Close(); running.Wait() })
	}

	const batches, each = 120, 20
	again := map[string]bool{} // sent more than once, because nobody knew
	published := make(chan int, batches)
	failed := make(chan error, 1)
	running.Go(func() {
		defer close(published)
		for n := range batches {
			msgs := make([]*message.Message, each)
			for i := range msgs {
				msgs[i] = message.NewMessage(envelope.NewUUID(), []byte("p"))
			}
			for len(msgs) > 0 && ctx.Err() == nil {
				var left []*message.Message
				for i, err := range b.Publisher().PublishBatch(ctx, topic, msgs) {
					if err != nil {
						left = append(left, msgs[i])
						mu.Lock()
						again[msgs[i].UUID] = true
						mu.Unlock()
					}
				}
				msgs = left
			}
			if len(msgs) > 0 {
				failed <- fmt.Errorf("batch %d is not published: %w", n, ctx.Err())
				return
			}
			published <- n
		}
	})
	for n := range published {
		if n == batches/3 || n == 2*batches/3 {
			c.restart(leader(), place.stream)
		}
	}
	select {
	case err := <-failed:
		require.NoError(t, err)
	default:
	}
	testenv.Eventually(t, 2*time.Minute, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(came) < batches*each {
			return fmt.Errorf("%d of %d messages came", len(came), batches*each)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, came, batches*each)
	for uuid := range unmarked {
		require.True(t, again[uuid], "a message came twice without being marked, and was sent once")
	}
	t.Logf("%d messages were sent again", len(again))
}

// JetStream's API may be imported under another name; then nothing may go by the usual one.
func TestDomainAndPrefix(t *testing.T) {
	t.Parallel()
	require.Equal(t, "$JS.API", (&Config{}).api())
	require.Equal(t, "$JS.hub.API", (&Config{Domain: "hub"}).api())
	require.Equal(t, "JS.hub.API", (&Config{APIPrefix: "JS.hub.API"}).api())
	require.Equal(t, &jetstream.Placement{Tags: []string{"a"}}, Placement{Tags: []string{"a"}}.servers())
	require.Nil(t, Placement{}.servers())
}
