package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/app/builtin"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// Topics of the plugin that turns messages into messages, and what makes a replica run it alone.
const (
	relabelIn  = "relabel.in"
	relabelOut = "relabel.out"
	relabeling = "relabel"
)

// relabel is the payload of relabel.in.
type relabel struct {
	Name    string `json:"name"`
	SleepMS int    `json:"sleep_ms"`
	Fails   bool   `json:"fails"`   // once in each process
	Refused bool   `json:"refused"` // for ever
	Kill    bool   `json:"kill"`    // the handler ends its process
}

// relabelSet is an application of the relabelling plugin alone.
func relabelSet() app.Set {
	set := builtin.Set()
	set.Plugins = []handlers.Plugin{{
		Name: "relabel", Guarantee: "One label for each name.", Publishes: []string{relabelOut},
		Open: handlers.Open(func(_ struct{}, b *handlers.Bindings) error {
			b.Transform(relabelIn, handlers.JSONTransform(label))
			return nil
		}),
	}}
	return set
}

func label(ctx context.Context, out handlers.Emitter, r relabel) error {
	select {
	case <-time.After(time.Duration(r.SleepMS) * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if r.Kill {
		os.Exit(137)
	}
	if r.Refused {
		return handlers.Permanent("told-to", "the test wants it")
	}
	if _, before := failedOnce.LoadOrStore(r.Name, true); r.Fails && !before {
		return errors.New("told to fail once")
	}
	return out.Publish(ctx, relabelOut, map[string]string{"label": r.Name})
}

// relabelSystem is a system whose keys are where keys says.
func relabelSystem(t *testing.T, broker, database, keys string) *system {
	t.Helper()
	s := newSystem(t, broker, database)
	s.set("keys", keys)
	if broker == "kafka" {
		s.set("brokers/kafka/session_timeout", "6s")
	}
	s.set("bindings/relabel/retry", node{"in_process": "0s", "first": "200ms"})
	s.write()
	return s
}

func (s *system) relabeler(name string) *replica {
	r := s.replica(name, true)
	r.env = append(r.env, asReplica+"="+relabeling)
	return r
}

// labels collects what a reader of committed records sees in relabel.out.
type labels struct {
	mu    sync.Mutex
	count map[string]int
	total int
}

func (s *system) labels() *labels {
	s.t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer, err := sarama.NewConsumer(testenv.Kafka(s.t), conf)
	require.NoError(s.t, err)
	topic := s.setting("topics", relabelOut, "name").(string)
	partitions, err := consumer.Partitions(topic)
	require.NoError(s.t, err)
	l := &labels{count: map[string]int{}}
	var reading sync.WaitGroup
	var readers []sarama.PartitionConsumer
	for _, p := range partitions {
		pc, err := consumer.ConsumePartition(topic, p, sarama.OffsetOldest)
		require.NoError(s.t, err)
		readers = append(readers, pc)
		reading.Go(func() {
			for record := range pc.Messages() {
				l.mu.Lock()
				l.count[string(record.Value)]++
				l.total++
				l.mu.Unlock()
			}
		})
	}
	s.t.Cleanup(func() {
		for _, pc := range readers {
			pc.AsyncClose()
		}
		reading.Wait()
		consumer.Close()
	})
	return l
}

func (l *labels) seen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// requireOnce checks that each name has one label, and nothing else has.
func (l *labels) requireOnce(t *testing.T, names []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var wrong []string
	for _, name := range names {
		if n := l.count[fmt.Sprintf(`{"label":%q}`, name)]; n != 1 {
			wrong = append(wrong, fmt.Sprintf("%s %d times", name, n))
		}
	}
	require.Empty(t, wrong)
	require.Equal(t, len(names), l.total)
}

// TestF068KafkaTransactionsUnderKills consumes, transforms and produces 20,000 messages and 4,000 second sendings in Kafka transactions, while replicas are
// killed ten times, and others join and leave four times. Some messages fail for the moment and are parked, some for ever.
// F068: a rebalance with work in flight.
func TestF068KafkaTransactionsUnderKills(t *testing.T) {
	const count, again, kills = 20000, 4000, 10
	s := relabelSystem(t, "kafka", "postgres", "kafka")
	a, b, c := s.relabeler("a"), s.relabeler("b"), s.relabeler("c")
	a.start()
	a.ready()
	b.start()
	b.ready()
	seen := s.labels()

	var events []event
	var labelled []string
	refused := 0
	for i := range count {
		name, more := fmt.Sprintf("n-%05d", i), ""
		switch {
		case i%1000 == 7:
			more, refused = `,"refused":true`, refused+1
		case i%500 == 3:
			more = `,"fails":true`
		}
		if !strings.Contains(more, "refused") {
			labelled = append(labelled, name)
		}
		events = append(events, event{topic: relabelIn, key: name, ordering: name, body: fmt.Sprintf(`{"name":%q,"sleep_ms":1%s}`, name, more)})
	}
	events = append(events, events[:again]...)
	sent := make(chan struct{})
	go func() { defer close(sent); s.sendFromSeveral(2, events) }()

	for n := range kills {
		testenv.Eventually(t, 2*time.Minute, func() error {
			return atLeast(int64(seen.seen()), int64(len(labelled)*(n+1)/(kills+2)), "labels before the next kill")
		})
		victim := []*replica{a, b}[n%2]
		victim.kill()
		switch n {
		case 2, 6:
			c.start()
		case 4, 8:
			c.stop()
		}
		victim.start()
	}
	<-sent
	testenv.Eventually(t, 3*time.Minute, func() error { return atLeast(int64(seen.seen()), int64(len(labelled)), "labels") })
	db := s.db()
	testenv.Eventually(t, time.Minute, func() error {
		return errors.Join(
			expect(number(t, db, `SELECT count(*) FROM parked WHERE state = 'waiting'`), 0, "messages that wait"),
			expect(number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead'`), int64(refused), "dead letters"),
		)
	})
	a.ready()
	b.ready()
	time.Sleep(2 * time.Second) // what comes too much comes now
	a.stop()
	b.stop()
	seen.requireOnce(t, labelled)
	s.emptyQueues(t, map[string]string{"relabel": relabelIn})
}

// TestF042KafkaTransactionsFindTheKiller: a message that kills its process ends as a dead letter, and no other does, wherever the others stand.
func TestF042KafkaTransactionsFindTheKiller(t *testing.T) {
	s := relabelSystem(t, "kafka", "postgres", "kafka")
	s.set("crash_limit", 2)
	s.set("brokers/kafka/partitions", 2)
	s.write()
	a := s.relabeler("a")
	a.start()
	a.ready()
	seen := s.labels()
	var events []event
	var labelled []string
	for i := range 100 {
		name, more := fmt.Sprintf("n-%03d", i), ""
		if i == 40 {
			more = `,"kill":true`
		} else {
			labelled = append(labelled, name)
		}
		events = append(events, event{topic: relabelIn, key: name, ordering: name, body: fmt.Sprintf(`{"name":%q%s}`, name, more)})
	}
	s.sendFromSeveral(1, events)
	db := s.db()
	ends := a.supervise(func() bool {
		return seen.seen() >= len(labelled) && number(t, db, `SELECT count(*) FROM parked WHERE state = 'dead' AND reason = 'crashed'`) == 1
	}, 4*time.Minute)
	require.GreaterOrEqual(t, ends, 3)
	a.ready()
	a.stop()
	seen.requireOnce(t, labelled)
	require.Equal(t, int64(1), number(t, db, `SELECT count(*) FROM parked`))
}

// TestTransformWithKeysInTheDatabase: the same plugin, with its keys in the database, on any broker; its messages leave by the outbox.
func TestTransformWithKeysInTheDatabase(t *testing.T) {
	s := relabelSystem(t, "kafka", "postgres", "database")
	r := s.relabeler("a")
	r.start()
	r.ready()
	seen := s.labels()
	var events []event
	var names []string
	for i := range 200 {
		name := fmt.Sprintf("n-%03d", i)
		names = append(names, name)
		one := event{topic: relabelIn, key: name, body: fmt.Sprintf(`{"name":%q,"fails":%t}`, name, i%50 == 0)}
		events = append(events, one, one)
	}
	s.sendFromSeveral(2, events)
	testenv.Eventually(t, time.Minute, func() error { return atLeast(int64(seen.seen()), int64(len(names)), "labels") })
	time.Sleep(time.Second) // what comes too much comes now
	seen.requireOnce(t, names)
	r.stop()
}
