package kafkabroker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/transact"
)

// pipe is a topic whose messages are copied to another one, in transactions.
type pipe struct {
	t       *testing.T
	in, out string
	sub     broker.Subscription
	keep    time.Duration // of keys
	batch   int           // messages in a transaction
}

func newPipe(t *testing.T, partitions int32) *pipe {
	t.Helper()
	p := &pipe{t: t, in: newTopic(t, partitions, nil), out: newTopic(t, 3, nil), keep: time.Hour, batch: 100}
	p.sub = broker.Subscription{Topic: p.in, Group: p.in}
	t.Cleanup(func() { removeTopic(t, p.keys()) })
	return p
}

func (p *pipe) keys() string { return p.in + "-keys" }

// open makes a replica of the pipe; nothing runs yet.
func (p *pipe) open() transact.Source {
	p.t.Helper()
	b := open(p.t, testConfig(p.t))
	require.NoError(p.t, b.DeclareKeys(p.t.Context(), p.sub))
	source, err := b.Transactions(p.sub, p.keep)
	require.NoError(p.t, err)
	return source
}

// start runs work on a new replica until the test ends.
func (p *pipe) start(work transact.Work) transact.Source {
	p.t.Helper()
	source := p.open()
	require.NoError(p.t, source.Start(work))
	return source
}

func (p *pipe) drain(source transact.Source) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(p.t, source.Drain(ctx))
}

// send publishes messages of these keys, one after the other; their payload is the key.
func (p *pipe) send(keys ...string) {
	p.t.Helper()
	msgs := make([]*message.Message, len(keys))
	for i, key := range keys {
		msgs[i] = message.NewMessage(envelope.NewUUID(), []byte(key))
		msgs[i].Metadata.Set(envelope.KeyHeader, key)
		msgs[i].Metadata.Set(envelope.OrderingKeyHeader, key)
	}
	b := open(p.t, testConfig(p.t))
	for _, err := range b.Publisher().PublishBatch(p.t.Context(), p.in, msgs) {
		require.NoError(p.t, err)
	}
	require.NoError(p.t, b.Close())
}

// keyOf reads the key of a message of the pipe.
func keyOf(msg *message.Message) string { return msg.Metadata.Get(envelope.KeyHeader) }

// copyTo is what a handled message becomes.
func copyTo(topic string, msg *message.Message) transact.Output {
	c := message.NewMessage(envelope.DeriveUUID(topic, keyOf(msg), 0), msg.Payload)
	c.Metadata.Set(envelope.KeyHeader, c.UUID)
	return transact.Output{Topic: topic, Message: c}
}

// batchOf takes what is there, at least one message unless none comes, and makes the batch of those that are new.
func (p *pipe) batchOf(shard transact.Shard) (transact.Batch, int, error) {
	var batch transact.Batch
	pending := map[string]bool{}
	taken, wait := 0, 200*time.Millisecond
	for taken < p.batch {
		msg, err := shard.Next(wait)
		if err != nil {
			return batch, taken, err
		}
		if msg == nil {
			break
		}
		wait = 0
		taken++
		key := keyOf(msg)
		if _, known := shard.Lookup(key); known || pending[key] {
			continue
		}
		pending[key] = true
		batch.Outputs = append(batch.Outputs, copyTo(p.out, msg))
		batch.Keys = append(batch.Keys, transact.Key{Key: key, Entry: transact.Entry{State: transact.Completed, Fingerprint: "payload:1:" + strings.Repeat("ab", 32)}})
	}
	return batch, taken, nil
}

// copies is the work of the pipe.
func (p *pipe) copies(ctx context.Context, shard transact.Shard) error {
	for {
		batch, _, err := p.batchOf(shard)
		if err != nil && !errors.Is(err, transact.ErrStopping) {
			return err
		}
		if err := shard.Commit(ctx, batch); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// published is what a consumer that reads committed records sees in a topic: how often each payload. It waits until there are at least so many, and then
// for the end of the topic.
func published(t testing.TB, topic string, atLeast int) map[string]int {
	t.Helper()
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Consumer.IsolationLevel = sarama.ReadCommitted
	conf.Consumer.Return.Errors = false
	consumer, err := sarama.NewConsumer(testenv.Kafka(t), conf)
	require.NoError(t, err)
	defer func() { require.NoError(t, consumer.Close()) }()
	partitions, err := consumer.Partitions(topic)
	require.NoError(t, err)
	var mu sync.Mutex
	seen, n := map[string]int{}, 0
	var reading sync.WaitGroup
	defer reading.Wait() // after all are closed
	for _, partition := range partitions {
		pc, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		require.NoError(t, err)
		defer pc.AsyncClose()
		reading.Go(func() {
			for record := range pc.Messages() {
				mu.Lock()
				seen[string(record.Value)]++
				n++
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
	testenv.Eventually(t, patience, func() error {
		if got := count(); got < atLeast {
			return fmt.Errorf("%d of %d records", got, atLeast)
		}
		return nil
	})
	for last := -1; last != count(); { // what comes too much comes now
		last = count()
		time.Sleep(time.Second)
	}
	mu.Lock()
	defer mu.Unlock()
	return seen
}

func names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return all
}

func requireOnce(t testing.TB, seen map[string]int, keys []string) {
	t.Helper()
	for _, key := range keys {
		require.Equal(t, 1, seen[key], key)
	}
	require.Len(t, seen, len(keys))
}

// A producer's second sendings are removed, over a restart too: the keys are read back before anything is consumed.
func TestTransactionsRemoveSecondSendings(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 3)
	keys := names("k", 300)
	p.send(append(append([]string{}, keys...), keys...)...)
	first := p.start(p.copies)
	requireOnce(t, published(t, p.out, len(keys)), keys)
	<-first.CaughtUp()
	p.drain(first)

	more := names("later", 50)
	p.send(append(append([]string{}, keys...), more...)...)
	second := p.start(p.copies)
	<-second.CaughtUp()
	requireOnce(t, published(t, p.out, len(keys)+len(more)), append(keys, more...))
	p.drain(second)
}

// Many owners at a time, each of other partitions: an id that they shared would fence all but one, for ever.
func TestTransactionsOfManyOwners(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 6)
	keys := names("k", 600)
	one, two, three := p.start(p.copies), p.start(p.copies), p.start(p.copies)
	for i := 0; i < len(keys); i += 100 {
		p.send(append(append([]string{}, keys[i:i+100]...), keys[i:i+100]...)...)
	}
	<-one.CaughtUp()
	requireOnce(t, published(t, p.out, len(keys)), keys)
	p.drain(two)
	again := names("again", 200)
	p.send(append(append([]string{}, keys...), again...)...)
	testenv.Eventually(t, patience, one.Consuming)
	requireOnce(t, published(t, p.out, len(keys)+len(again)), append(keys, again...))
	p.drain(three)
	p.drain(one)
}

// What a transaction wrote before the cluster refused one of its records stays unseen; without that one the batch commits.
func TestF060TransactionsRefuseWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 1)
	p.out = newTopic(t, 1, map[string]string{"max.message.bytes": "20000"})
	p.send("a", "b", "c")
	large := strings.Repeat("x", 30000)
	var refused []int
	done := make(chan error, 1)
	source := p.start(func(ctx context.Context, shard transact.Shard) error {
		var all transact.Batch
		for len(all.Outputs) < 3 {
			batch, _, err := p.batchOf(shard)
			if err != nil {
				return err
			}
			all.Outputs, all.Keys = append(all.Outputs, batch.Outputs...), append(all.Keys, batch.Keys...)
		}
		all.Outputs[1].Message.Payload = []byte(large)
		err := shard.Commit(ctx, all)
		var r *transact.Refused
		if errors.As(err, &r) && errors.Is(err, outbox.ErrUnpublishable) {
			refused = append(refused, r.Output)
			all.Outputs = append(all.Outputs[:1], all.Outputs[2])
			all.Keys[1].State = transact.Failed
			err = shard.Commit(ctx, all)
		}
		entry, known := shard.Lookup("b")
		if err == nil && (!known || entry.State != transact.Failed) {
			err = errors.New("the key of the refused output is not known as failed")
		}
		done <- err
		<-shard.Stopping()
		return nil
	})
	require.NoError(t, <-done)
	require.Equal(t, []int{1}, refused)
	requireOnce(t, published(t, p.out, 2), []string{"a", "c"})
	p.drain(source)
}

// Keys are forgotten after their retention, in memory and in the topic, but not while a backlog may hold copies of their messages.
func TestTransactionsForgetKeysAfterTheRetention(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 1)
	p.keep = 3 * time.Second
	p.send("k")
	first := p.start(p.copies)
	<-first.CaughtUp()
	requireOnce(t, published(t, p.out, 1), []string{"k"})
	p.drain(first)

	time.Sleep(p.keep + time.Second) // the time is what is tested
	p.send("new", "k")               // a copy that waited: its key is old, and still counts
	p.batch = 1
	forgotten := make(chan struct{})
	var once sync.Once
	second := p.start(func(ctx context.Context, shard transact.Shard) error {
		for {
			batch, _, err := p.batchOf(shard)
			if err != nil {
				return nil
			}
			if err := shard.Commit(ctx, batch); err != nil {
				return err
			}
			if _, known := shard.Lookup("k"); !known {
				once.Do(func() { close(forgotten) })
			}
		}
	})
	select {
	case <-forgotten:
	case <-time.After(patience):
		require.FailNow(t, "the key is kept")
	}
	p.drain(second)
	require.Equal(t, map[string]int{"k": 1, "new": 1}, published(t, p.out, 2), "the copy in the backlog was a duplicate")

	p.send("k")
	third := p.start(p.copies)
	require.Equal(t, map[string]int{"k": 2, "new": 1}, published(t, p.out, 3), "behind the retention it is a new message, also for a new owner")
	p.drain(third)
}

// Offsets of transactions are the group's: a start-up gate sees them, and with plain consuming the group goes on behind them.
func TestTransactionsCommitTheGroupsOffsets(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 1)
	b := open(t, testConfig(t))
	remembers, err := b.Remembers(t.Context(), p.sub)
	require.NoError(t, err)
	require.False(t, remembers)
	p.send(names("k", 10)...)
	source := p.start(p.copies)
	<-source.CaughtUp()
	p.drain(source)
	require.Equal(t, map[int32]int64{0: 10}, committed(t, p.sub.Group, p.in, 0))
	known, err := b.CommittedOffsets(t.Context(), p.sub.Group, p.in)
	require.NoError(t, err)
	require.True(t, known)
	remembers, err = b.Remembers(t.Context(), p.sub)
	require.NoError(t, err)
	require.True(t, remembers)

	p.send("next")
	r := subscribe(t, b, p.sub)
	msg := r.next()
	require.Equal(t, "next", keyOf(msg))
	msg.Ack()
	r.drain()
}

// A partition whose keys fill their room waits until some expire; it forgets none early, and says that it waits.
func TestTransactionsWaitForRoom(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 1)
	p.keep, p.batch = 4*time.Second, 1
	conf := testConfig(t)
	conf.MaxKeys = 5
	b := open(t, conf)
	require.NoError(t, b.DeclareKeys(t.Context(), p.sub))
	source, err := b.Transactions(p.sub, p.keep)
	require.NoError(t, err)
	keys := names("k", 5)
	p.send(keys...)
	require.NoError(t, source.Start(p.copies))
	requireOnce(t, published(t, p.out, 5), keys)
	p.send("k0", "later")
	testenv.Eventually(t, patience, func() error {
		if err := source.Consuming(); err == nil || !strings.Contains(err.Error(), "max_keys") {
			return fmt.Errorf("it does not wait: %w", err)
		}
		return nil
	})
	testenv.Eventually(t, patience, source.Consuming)
	require.Equal(t, 1, published(t, p.out, 6)["later"])
	p.drain(source)
}

func TestTransactionsNeedWhatFences(t *testing.T) {
	t.Parallel()
	conf := testConfig(t)
	conf.Version = "2.4.0"
	b := open(t, conf)
	_, err := b.Transactions(broker.Subscription{Topic: "in", Group: "g"}, time.Hour)
	require.ErrorContains(t, err, "version 2.5.0")
}

func TestKeysAreDeclaredAsTheInputIs(t *testing.T) {
	t.Parallel()
	p := newPipe(t, 2)
	b := open(t, testConfig(t))
	verifying := testConfig(t)
	verifying.Topology = kafkabroker.TopologyVerify
	v := open(t, verifying)
	require.ErrorContains(t, v.DeclareKeys(t.Context(), p.sub), "does not exist")
	require.NoError(t, b.DeclareKeys(t.Context(), p.sub))
	require.NoError(t, v.DeclareKeys(t.Context(), p.sub))

	require.NoError(t, admin(t).CreatePartitions(p.in, 4, nil, false))
	testenv.Eventually(t, patience, func() error {
		if err := b.Declare(t.Context(), p.in, nil); err != nil {
			return err
		}
		if err := b.DeclareKeys(t.Context(), p.sub); err != nil {
			return err
		}
		described, err := admin(t).DescribeTopics([]string{p.keys()})
		if err == nil && len(described[0].Partitions) != 4 {
			err = fmt.Errorf("%d partitions", len(described[0].Partitions))
		}
		return err
	})

	loses := "delete"
	require.NoError(t, admin(t).AlterConfig(sarama.TopicResource, p.keys(), map[string]*string{"cleanup.policy": &loses}, false))
	testenv.Eventually(t, patience, func() error {
		if err := b.DeclareKeys(t.Context(), p.sub); err == nil || !strings.Contains(err.Error(), "would lose keys") {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
}
