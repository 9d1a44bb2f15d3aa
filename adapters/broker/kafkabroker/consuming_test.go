package kafkabroker_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
)

// F069: record 5 of an entity fails three times. The others of other entities go on, the committed offset does not pass it, nothing is
// skipped, and those behind it that were handed back come in their order.
func TestF069NackSkipsNothing(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	b := open(t, testConfig(t))
	require.NoError(t, b.Publisher().Publish(topic, newMessages(20, "entity")...))
	require.NoError(t, b.Publisher().Publish(topic, newMessages(20, "bystander")...))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic, Ordered: true, InFlight: 8})

	var effects []int
	failures, bystanders, blocked := 0, 0, false
	for len(effects) < 20 || bystanders < 20 {
		msg := r.next()
		if string(delivery(msg).RecordKey) == "bystander" {
			bystanders++
			msg.Ack()
			continue
		}
		n, err := strconv.Atoi(string(msg.Payload))
		require.NoError(t, err)
		switch {
		case n == 5 && failures < 3:
			failures++
			blocked = true
			require.Equal(t, failures > 1, delivery(msg).Redelivered)
			require.LessOrEqual(t, committed(t, topic, topic, 0)[0], int64(5))
			msg.Nack()
		case blocked && n != 5: // as the engine does: a successor of what was handed back is handed back unrun
			msg.Nack()
		default:
			blocked = blocked && n != 5
			effects = append(effects, n)
			msg.Ack()
		}
	}
	for i, n := range effects {
		require.Equal(t, i, n, "%v", effects)
	}
	require.Equal(t, 3, failures)
	r.drain()
	require.Equal(t, int64(40), committed(t, topic, topic, 0)[0])
}

// F069, second run: the replica dies while record 5 is unresolved.
func TestF069CrashWhileUnresolved(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	own := &line{}
	conf := testConfig(t)
	conf.Dial = own.dial
	b := open(t, conf)
	require.NoError(t, b.Publisher().Publish(topic, newMessages(20, "entity")...))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	for i, msg := range r.take(20) {
		if i != 5 {
			msg.Ack()
		}
	}
	testenv.Eventually(t, patience, func() error {
		if at := committed(t, topic, topic, 0)[0]; at != 5 {
			return fmt.Errorf("committed %d", at)
		}
		return nil
	})
	own.cut()
	require.NoError(t, b.Close())

	again := subscribe(t, open(t, testConfig(t)), broker.Subscription{Topic: topic, Group: topic})
	for i, msg := range again.take(15) {
		require.Equal(t, strconv.Itoa(i+5), string(msg.Payload))
		require.True(t, delivery(msg).Redelivered)
		msg.Ack()
	}
	again.drain()
	require.Equal(t, int64(20), committed(t, topic, topic, 0)[0])
}

// After a crash every record that was in flight is marked, and no more than a window; after a clean stop none is.
func TestSuspects(t *testing.T) {
	t.Parallel()
	const window = 20
	topic := newTopic(t, 1, nil)
	conf := testConfig(t)
	conf.Window = window
	own := &line{}
	crashing := conf
	crashing.Dial = own.dial
	b := open(t, crashing)
	require.NoError(t, b.Publisher().Publish(topic, newMessages(100, "")...))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	for _, msg := range r.take(10) {
		require.False(t, delivery(msg).Redelivered, "nobody was there before")
		msg.Ack()
	}
	held := r.take(window)
	select {
	case msg := <-r.msgs:
		require.Fail(t, "more than a window is in flight", string(msg.Payload))
	case <-time.After(500 * time.Millisecond):
	}
	own.cut()
	require.NoError(t, b.Close())

	second := open(t, conf)
	r = subscribe(t, second, broker.Subscription{Topic: topic, Group: topic})
	marked := 0
	for i := range 40 {
		msg := r.next()
		require.Equal(t, strconv.Itoa(i+10), string(msg.Payload))
		if delivery(msg).Redelivered {
			marked++
		}
		require.Equal(t, i < len(held), delivery(msg).Redelivered, "record %d", i+10)
		msg.Ack()
	}
	require.Equal(t, window, marked)
	r.drain()

	msg := subscribe(t, second, broker.Subscription{Topic: topic, Group: topic}).next()
	require.Equal(t, "50", string(msg.Payload))
	require.False(t, delivery(msg).Redelivered, "a clean stop leaves no suspects")
	msg.Ack()
}

// Where somebody else has committed, a tool or another client, a window's worth of records is suspect.
func TestSuspectsAfterForeignCommit(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	conf := testConfig(t)
	conf.Window = 4
	b := open(t, conf)
	require.NoError(t, b.Publisher().Publish(topic, newMessages(10, "")...))
	client, err := sarama.NewClient(testenv.Kafka(t), sarama.NewConfig())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	offsets, err := sarama.NewOffsetManagerFromClient(topic, client)
	require.NoError(t, err)
	partition, err := offsets.ManagePartition(topic, 0)
	require.NoError(t, err)
	partition.MarkOffset(2, "by hand")
	offsets.Commit()
	partition.AsyncClose()
	require.NoError(t, offsets.Close())

	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	for n := 2; n < 10; n++ {
		msg := r.next()
		require.Equal(t, strconv.Itoa(n), string(msg.Payload))
		require.Equal(t, n < 6, delivery(msg).Redelivered, "record %d", n)
		msg.Ack()
	}
}

// A replica without a partition, because others have them all, is a healthy member; it takes over when one leaves.
func TestIdleReplica(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	b := open(t, testConfig(t))
	sub := broker.Subscription{Topic: topic, Group: topic}
	readers := []*reader{subscribe(t, b, sub), subscribe(t, b, sub)}
	for _, r := range readers {
		testenv.Eventually(t, patience, r.sub.Consuming)
	}
	require.NoError(t, b.Publisher().Publish(topic, newMessages(1, "")...))
	active, idle := readers[0], readers[1]
	select {
	case msg := <-readers[0].msgs:
		msg.Ack()
	case msg := <-readers[1].msgs:
		active, idle = readers[1], readers[0]
		msg.Ack()
	case <-time.After(patience):
		require.Fail(t, "nothing comes")
	}
	active.drain()
	require.NoError(t, b.Publisher().Publish(topic, newMessages(1, "")...))
	idle.next().Ack()
}

// watermill#691: waiting for a topic that does not exist is no storm of connections, and ends when it is made.
func TestMissingTopicIsNoStorm(t *testing.T) {
	t.Parallel()
	topic := testenv.Name(t, "kb")
	conf := testConfig(t)
	conf.Topology = "verify"
	var dials atomic.Int32
	conf.Dial = func(network, addr string) (net.Conn, error) {
		dials.Add(1)
		return net.DialTimeout(network, addr, 5*time.Second)
	}
	b := open(t, conf)
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	time.Sleep(3 * time.Second) // the time in which a storm would show
	require.ErrorIs(t, r.sub.Consuming(), sarama.ErrUnknownTopicOrPartition)
	require.LessOrEqual(t, dials.Load(), int32(20))

	other := open(t, testConfig(t))
	t.Cleanup(func() { removeTopic(t, topic) })
	require.NoError(t, other.Publisher().Publish(topic, newMessages(1, "")...))
	r.next().Ack()
	require.NoError(t, r.sub.Consuming())
}

// A start-up gate can tell a group that ran before from one whose offsets are gone.
func TestCommittedOffsets(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 2, nil)
	b := open(t, testConfig(t))
	has, err := b.CommittedOffsets(t.Context(), topic, topic)
	require.NoError(t, err)
	require.False(t, has)
	has, err = b.CommittedOffsets(t.Context(), topic, testenv.Name(t, "kb"))
	require.NoError(t, err)
	require.False(t, has, "a topic that does not exist")

	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	testenv.Eventually(t, patience, r.sub.Consuming)
	has, err = b.CommittedOffsets(t.Context(), topic, topic)
	require.NoError(t, err)
	require.True(t, has, "a member that has seen nothing yet")
}

// A process that was killed in the middle of a commit leaves offsets undecided: its group is not forgotten.
func TestCommittedOffsetsUndecided(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient(testenv.Kafka(t), conf)
	require.NoError(t, err)
	defer client.Close()
	coordinator, err := client.TransactionCoordinator(topic)
	require.NoError(t, err)
	var owner *sarama.InitProducerIDResponse
	testenv.Eventually(t, patience, func() error {
		owner, err = coordinator.InitProducerID(&sarama.InitProducerIDRequest{Version: 1, TransactionalID: &topic, TransactionTimeout: time.Minute})
		if err == nil && owner.Err != sarama.ErrNoError {
			err = owner.Err // the coordinator loads its log
		}
		return err
	})
	added, err := coordinator.AddOffsetsToTxn(&sarama.AddOffsetsToTxnRequest{
		TransactionalID: topic, ProducerID: owner.ProducerID, ProducerEpoch: owner.ProducerEpoch, GroupID: topic,
	})
	require.NoError(t, err)
	require.Equal(t, sarama.ErrNoError, added.Err)
	group, err := client.Coordinator(topic)
	require.NoError(t, err)
	sent, err := group.TxnOffsetCommit(&sarama.TxnOffsetCommitRequest{
		TransactionalID: topic, ProducerID: owner.ProducerID, ProducerEpoch: owner.ProducerEpoch, GroupID: topic,
		Topics: map[string][]*sarama.PartitionOffsetMetadata{topic: {{Partition: 0, Offset: 1}}},
	})
	require.NoError(t, err)
	require.Equal(t, sarama.ErrNoError, sent.Topics[topic][0].Err)

	has, err := open(t, testConfig(t)).CommittedOffsets(t.Context(), topic, topic)
	require.NoError(t, err)
	require.True(t, has)
}

// Records of aborted transactions and transaction markers are no backlog, and no messages.
func TestTransactionsOfOthers(t *testing.T) {
	t.Parallel()
	topic := newTopic(t, 1, nil)
	conf := sarama.NewConfig()
	conf.Version = sarama.V2_8_0_0
	conf.Producer.Idempotent, conf.Net.MaxOpenRequests, conf.Producer.RequiredAcks = true, 1, sarama.WaitForAll
	conf.Producer.Return.Successes = true
	conf.Producer.Transaction.ID = topic
	producer, err := sarama.NewSyncProducer(testenv.Kafka(t), conf)
	require.NoError(t, err)
	defer func() { _ = producer.Close() }()
	transaction := func(end func() error, payloads ...string) {
		require.NoError(t, producer.BeginTxn())
		for _, payload := range payloads {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(payload)})
			require.NoError(t, err)
		}
		require.NoError(t, end())
	}
	transaction(producer.CommitTxn, "a", "b")
	transaction(producer.AbortTxn, "x", "y")

	b := open(t, testConfig(t))
	r := subscribe(t, b, broker.Subscription{Topic: topic, Group: topic})
	for _, want := range []string{"a", "b"} {
		msg := r.next()
		require.Equal(t, want, string(msg.Payload))
		if want == "b" {
			select {
			case <-r.sub.CaughtUp():
				require.Fail(t, "caught up with a record in flight")
			case <-time.After(time.Second):
			}
		}
		msg.Ack()
	}
	select {
	case <-r.sub.CaughtUp():
	case <-time.After(patience):
		require.Fail(t, "what no consumer sees counts as backlog")
	}
	transaction(producer.CommitTxn, "c")
	msg := r.next()
	require.Equal(t, "c", string(msg.Payload))
	msg.Ack()
}

// F083: what is said about a cluster that cannot be reached names the host, and no secret.
func TestF083NoSecretInErrors(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-Zq!"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-512"} {
		conf := testConfig(t)
		conf.Brokers = []string{addr, testenv.Kafka(t)[0]} // one is closed, one speaks no SASL
		conf.SASL.Mechanism, conf.SASL.User, conf.SASL.Password = mechanism, "user", secret
		b, err := openQuickly(t, conf)
		require.Error(t, err)
		require.Nil(t, b)
		require.ErrorContains(t, err, addr)
		for _, text := range []string{err.Error(), fmt.Sprintf("%v %+v %#v %q %s", conf, conf, conf, conf.SASL, conf.SASL.Password), fmt.Sprint(errors.Unwrap(err))} {
			require.NotContains(t, text, secret)
			require.NotContains(t, text, "s3cr3t-Zq%21")
		}
	}
}

// One dead address among several is no reason to fail.
func TestOneBrokerIsDown(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	conf := testConfig(t)
	conf.Brokers = append([]string{listener.Addr().String()}, conf.Brokers...)
	topic := newTopic(t, 1, nil)
	for range 5 { // the library shuffles the addresses
		b := open(t, conf)
		require.NoError(t, b.Ping(t.Context()))
		require.NoError(t, b.Publisher().Publish(topic, newMessages(1, "")...))
	}
}
