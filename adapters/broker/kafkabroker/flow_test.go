package kafkabroker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/parking"
	"github.com/oncemill/oncemill/middleware/transact"
)

// plant is a flow over a pipe: what the application runs for a binding with its keys in Kafka.
type plant struct {
	*pipe
	store store.Store
	cfg   idempotency.FlowConfig
	act   atomic.Pointer[func(ctx context.Context, out *idempotency.Outputs, msg *message.Message) error]

	mu     sync.Mutex
	events map[idempotency.EventKind]int
}

const plantScope = "svc/plant"

func newPlant(t *testing.T, partitions int32) *plant {
	t.Helper()
	p := &plant{pipe: newPipe(t, partitions), events: map[idempotency.EventKind]int{}}
	var err error
	p.store, err = sqlitestore.Open(t.Context(), sqlitestore.Config{Path: filepath.Join(t.TempDir(), "plant.db")}, store.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.store.Close()) })
	require.NoError(t, p.store.Migrate(t.Context(), nil))
	p.cfg = idempotency.FlowConfig{
		Config: idempotency.Config{
			Binding: idempotency.Binding{Scope: plantScope, Topic: p.in, Retry: idempotency.Retry{InProcess: -1, First: 100 * time.Millisecond, Attempts: 3}},
			Keys:    p.store.Keys(), Parking: p.store.Parking(), Logger: testOptions(t).Logger,
			Observe: func(e idempotency.Event) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.events[e.Kind]++
			},
		},
		Poll: 100 * time.Millisecond,
		Transform: func(ctx context.Context, out *idempotency.Outputs, msg *message.Message) error {
			if act := p.act.Load(); act != nil {
				if err := (*act)(ctx, out, msg); err != nil {
					return err
				}
			}
			return out.Publish(ctx, p.out, message.NewMessage("", msg.Payload))
		},
	}
	return p
}

// does makes the handler do f before it publishes.
func (p *plant) does(f func(ctx context.Context, out *idempotency.Outputs, msg *message.Message) error) {
	p.act.Store(&f)
}

// run runs a replica until it is drained.
func (p *plant) run() transact.Source {
	p.t.Helper()
	flow, err := idempotency.NewFlow(p.cfg)
	require.NoError(p.t, err)
	return p.start(flow.Work)
}

func (p *plant) saw(kind idempotency.EventKind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events[kind]
}

// put publishes messages of one key and ordering key with these payloads.
func (p *plant) put(key, ordering string, payloads ...string) {
	p.t.Helper()
	records := make([]*sarama.ProducerMessage, len(payloads))
	for i, payload := range payloads {
		records[i] = &sarama.ProducerMessage{Topic: p.in, Key: sarama.StringEncoder(ordering), Value: sarama.StringEncoder(payload), Headers: []sarama.RecordHeader{
			{Key: []byte(envelope.KeyHeader), Value: []byte(key)}, {Key: []byte(envelope.OrderingKeyHeader), Value: []byte(ordering)},
		}}
	}
	produce(p.t, records...)
}

// rows waits until the parked rows of a state are as many, and returns them.
func (p *plant) rows(state parking.State, want int) []parking.Row {
	p.t.Helper()
	var rows []parking.Row
	testenv.Eventually(p.t, patience, func() (err error) {
		rows, err = p.store.Parking().List(context.Background(), parking.Filter{States: []parking.State{state}})
		if err == nil && len(rows) != want {
			err = fmt.Errorf("%d rows are %s, not %d", len(rows), state, want)
		}
		return err
	})
	return rows
}

func TestFlowBuriesWhatIsNoDuplicate(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.put("k", "o", "one", "two", "one")
	p.put("other", "o", "three")
	produce(t, &sarama.ProducerMessage{Topic: p.in, Key: sarama.StringEncoder("o"), Value: sarama.StringEncoder("keyless")})
	source := p.run()
	requireOnce(t, published(t, p.out, 2), []string{"one", "three"})
	dead := p.rows(parking.Dead, 2)
	require.Equal(t, []string{"payload-mismatch", "key-missing"}, []string{dead[0].Reason, dead[1].Reason})
	require.Equal(t, idempotency.ShardScope(plantScope, "0"), dead[0].Scope)
	p.drain(source)

	p.put("k", "o", "two", "one") // known to the next owner, too; the dead letter does not multiply
	p.put("last", "o", "four")
	source = p.run()
	requireOnce(t, published(t, p.out, 3), []string{"one", "three", "four"})
	p.rows(parking.Dead, 2)
	p.drain(source)
	require.Equal(t, 2, p.saw(idempotency.EventDuplicate))
}

// Derived identities are those of the engine, so that a switch of keys changes none.
func TestFlowDerivesIdentities(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.put("k", "o", "one")
	source := p.run()
	requireOnce(t, published(t, p.out, 1), []string{"one"})
	p.drain(source)
	sub := p.sub
	sub.Topic, sub.Group = p.out, p.out
	r := subscribe(t, open(t, testConfig(t)), sub)
	msg := r.next()
	require.Equal(t, envelope.DeriveUUID(plantScope, "k", 0), msg.UUID)
	require.Equal(t, msg.UUID, keyOf(msg))
	require.Equal(t, "o", msg.Metadata.Get(envelope.OrderingKeyHeader))
	msg.Ack()
	r.drain()
}

// A failing message is parked; those of its ordering key queue behind it, others go on. F069: nothing is skipped, and the order holds.
func TestF069FlowParksAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.cfg.Binding.Retry.Attempts = 10
	var healed atomic.Bool
	p.does(func(_ context.Context, _ *idempotency.Outputs, msg *message.Message) error {
		if string(msg.Payload) == "a1" && !healed.Load() {
			return errors.New("not yet")
		}
		return nil
	})
	p.put("a1", "a", "a1")
	p.put("b1", "b", "b1")
	p.put("a2", "a", "a2", "a2")
	p.put("b2", "b", "b2")
	p.put("a3", "a", "a3")
	source := p.run()
	requireOnce(t, published(t, p.out, 2), []string{"b1", "b2"})
	p.rows(parking.Waiting, 3)
	p.drain(source)

	source = p.run() // the next owner knows who waits
	p.put("a4", "a", "a4")
	p.rows(parking.Waiting, 4)
	healed.Store(true)
	requireOnce(t, published(t, p.out, 6), []string{"b1", "b2", "a1", "a2", "a3", "a4"})
	p.rows(parking.Waiting, 0)
	p.drain(source)

	sub := p.sub
	sub.Topic, sub.Group = p.out, p.out
	r := subscribe(t, open(t, testConfig(t)), sub)
	var order []string
	for _, msg := range r.take(6) {
		if strings.HasPrefix(string(msg.Payload), "a") {
			order = append(order, string(msg.Payload))
		}
		msg.Ack()
	}
	require.Equal(t, []string{"a1", "a2", "a3", "a4"}, order)
	r.drain()
}

// Failures that no retry mends, and those that fail too often, are dead letters; a person sends one back, and it runs once.
func TestFlowRedrives(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 2)
	var healed atomic.Bool
	p.does(func(_ context.Context, _ *idempotency.Outputs, msg *message.Message) error {
		switch payload := string(msg.Payload); {
		case healed.Load() || payload == "fine":
			return nil
		case payload == "bad":
			return &refusal{}
		default:
			return errors.New("fails")
		}
	})
	p.put("bad", "bad", "bad", "bad")
	p.put("weak", "weak", "weak")
	p.put("fine", "fine", "fine")
	source := p.run()
	dead := p.rows(parking.Dead, 2)
	reasons := map[string]string{}
	for _, row := range dead {
		reasons[row.Key] = row.Reason
	}
	require.Equal(t, map[string]string{"bad": "told-to", "weak": "attempts-exhausted"}, reasons)
	testenv.Eventually(t, patience, func() error {
		if p.saw(idempotency.EventRejected) != 1 {
			return errors.New("the second sending is not rejected yet")
		}
		return nil
	})
	requireOnce(t, published(t, p.out, 1), []string{"fine"})

	healed.Store(true)
	for _, row := range dead {
		require.NoError(t, p.store.Parking().Redrive(t.Context(), row.ID, "", parking.Action{By: "test"}))
	}
	requireOnce(t, published(t, p.out, 3), []string{"fine", "bad", "weak"})
	p.rows(parking.Waiting, 0)
	p.rows(parking.Dead, 0)
	p.put("bad", "bad", "bad")
	p.put("end", "end", "end")
	requireOnce(t, published(t, p.out, 4), []string{"fine", "bad", "weak", "end"})
	p.drain(source)
}

// refusal is a permanent failure.
type refusal struct{}

func (refusal) Error() string     { return "refused" }
func (refusal) Permanent() string { return "told-to" }

// Wherever an owner is lost between the database and Kafka's commit, a message leaves one row and one output.
func TestFlowLosesItsShardAtEachStep(t *testing.T) {
	t.Parallel()
	for _, at := range []faultpoint.Point{
		faultpoint.BeforeParking, faultpoint.Parked, faultpoint.BeforeDeadLetter, faultpoint.DeadLetterWritten,
		faultpoint.BeforeCommit, faultpoint.Committed,
	} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			p := newPlant(t, 1)
			var lost atomic.Int32
			p.cfg.Fault = func(_ context.Context, point faultpoint.Point) error {
				if point == at && lost.Add(1) <= 2 {
					return fmt.Errorf("lost at %s: %w", point, transact.ErrLost)
				}
				return nil
			}
			var failed atomic.Bool
			p.does(func(_ context.Context, _ *idempotency.Outputs, msg *message.Message) error {
				switch string(msg.Payload) {
				case "bad":
					return refusal{}
				case "weak":
					if !failed.Swap(true) {
						return errors.New("fails once")
					}
				}
				return nil
			})
			p.put("one", "one", "one", "one")
			p.put("weak", "weak", "weak", "weak")
			p.put("bad", "bad", "bad", "bad")
			p.put("end", "end", "end")
			source := p.run()
			requireOnce(t, published(t, p.out, 3), []string{"one", "weak", "end"})
			p.rows(parking.Waiting, 0)
			require.Equal(t, "told-to", p.rows(parking.Dead, 1)[0].Reason)
			require.Positive(t, lost.Load())
			p.drain(source)
		})
	}
}

// A stop lets the handler that runs finish and its batch commit; a message that waits for a retry is parked.
func TestFlowStopsGracefully(t *testing.T) {
	t.Parallel()
	p := newPlant(t, 1)
	p.cfg.Binding.Retry.InProcess = time.Minute
	running := make(chan struct{})
	finish := make(chan struct{})
	var once sync.Once
	p.does(func(_ context.Context, _ *idempotency.Outputs, msg *message.Message) error {
		if string(msg.Payload) != "slow" {
			return nil
		}
		once.Do(func() { close(running) })
		<-finish
		return nil
	})
	p.put("before", "before", "before")
	p.put("slow", "slow", "slow")
	p.put("behind", "behind", "behind")
	source := p.run()
	<-running
	drained := make(chan error, 1)
	go func() { drained <- source.Drain(context.Background()) }()
	testenv.Eventually(t, patience, func() error {
		if source.Consuming() == nil {
			return errors.New("not stopping yet")
		}
		return nil
	})
	time.Sleep(testConfig(t).SettleTimeout + time.Second) // a rebalance waits for less; a stop has its own patience
	close(finish)
	require.NoError(t, <-drained)
	seen := published(t, p.out, 2)
	require.Equal(t, 1, seen["slow"])
	require.Equal(t, map[int32]int64{0: int64(len(seen))}, committed(t, p.sub.Group, p.in, 0), "what is committed is what was published")

	source = p.run()
	requireOnce(t, published(t, p.out, 3), []string{"before", "slow", "behind"})
	p.drain(source)
}
