package natsbroker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// bench is an embedded broker with one topic, and what tests do with it.
type bench struct {
	*testing.T
	dir   string
	topic string
	b     *Broker
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	k := &bench{T: t, dir: dir, topic: testenv.Name(t, "t")}
	k.b = k.open()
	return k
}

func (k *bench) open() *Broker {
	b := openTest(k.T, EmbeddedFactory(), nil, k.dir).(*Broker)
	k.Cleanup(func() { _ = b.Close() })
	return b
}

func (k *bench) publish(payloads ...string) {
	k.Helper()
	for _, payload := range payloads {
		msg := message.NewMessage(envelope.NewUUID(), []byte(payload))
		msg.Metadata.Set(envelope.OrderingKeyHeader, "one")
		require.NoError(k, k.b.Publisher().Publish(k.topic, msg))
	}
}

func (k *bench) subscribe(b *Broker, sub broker.Subscription) (broker.Subscriber, <-chan *message.Message) {
	k.Helper()
	sub.Topic, sub.Group = k.topic, "g"
	require.NoError(k, b.Declare(k.Context(), k.topic, []broker.Subscription{sub}))
	s, err := b.Subscriber(sub)
	require.NoError(k, err)
	msgs, err := s.Subscribe(k.Context(), k.topic)
	require.NoError(k, err)
	return s, msgs
}

func (k *bench) next(msgs <-chan *message.Message) *message.Message {
	k.Helper()
	select {
	case msg := <-msgs:
		require.NotNil(k, msg, "the channel is closed")
		return msg
	case <-time.After(20 * time.Second):
		require.FailNow(k, "no message came")
		return nil
	}
}

// raw is the plain client's view of the group's consumer.
func (k *bench) raw() jetstream.Consumer {
	k.Helper()
	consumer, err := k.b.link.js.Consumer(k.Context(), assetName(k.topic), "g")
	require.NoError(k, err)
	return consumer
}

// A handler that takes longer than the server waits keeps its message, and other replicas do not get it.
func TestF065LongHandlerIsKeptAlive(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	k.b.cfg.AckWait = time.Second
	_, msgs := k.subscribe(k.b, broker.Subscription{})
	k.publish("slow")
	msg := k.next(msgs)
	other := k.open()
	other.cfg.AckWait = time.Second
	_, others := k.subscribe(other, broker.Subscription{})
	select {
	case again := <-others:
		require.FailNow(t, "another replica got it", "%s", again.Payload)
	case again := <-msgs:
		require.FailNow(t, "it came twice", "%s", again.Payload)
	case <-time.After(4 * time.Second):
	}
	require.NoError(t, msg.Context().Err())
	require.True(t, msg.Ack())
	<-msg.Context().Done()
	info, err := k.raw().Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.NumAckPending+info.NumRedelivered)
}

// A delivery that went somewhere else shows as a gap: what follows it is withheld until it has come again.
func TestOrderedGap(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	s, msgs := k.subscribe(k.b, broker.Subscription{InFlight: 4, Ordered: true})
	k.publish("1")
	require.Equal(t, "1", string(k.next(msgs).Payload)) // stays in flight
	testenv.Eventually(t, 5*time.Second, s.Consuming)

	// A request that a former holder left behind takes the next message. It is before ours in the server's queue only when ours is
	// renewed after it, so it may need some messages until it gets one.
	thief, err := k.raw().Fetch(1, jetstream.FetchMaxWait(20*time.Second))
	require.NoError(t, err)
	stolen := make(chan string, 1)
	go func() {
		for msg := range thief.Messages() {
			stolen <- string(msg.Data())
		}
	}()
	var missing string
	published := 1
	for missing == "" {
		published++
		k.publish(fmt.Sprint(published))
		select {
		case missing = <-stolen:
		case msg := <-msgs:
			require.Equal(t, fmt.Sprint(published), string(msg.Payload))
			msg.Ack()
		}
	}
	k.publish("after")
	got := []string{string(k.next(msgs).Payload), string(k.next(msgs).Payload)}
	require.Equal(t, []string{missing, "after"}, got)
}

// Nacked, an ordered message comes again, in its place, and does not go to the standby.
func TestOrderedNack(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	s, msgs := k.subscribe(k.b, broker.Subscription{Ordered: true})
	testenv.Eventually(t, 5*time.Second, s.Consuming)
	standby, others := k.subscribe(k.open(), broker.Subscription{Ordered: true})
	testenv.Eventually(t, 5*time.Second, standby.Consuming)
	k.publish("1", "2", "3")
	for _, msg := range []*message.Message{k.next(msgs), k.next(msgs), k.next(msgs)} {
		require.False(t, envelope.DeliveryFrom(msg.Context()).Redelivered)
		require.True(t, msg.Nack())
		<-msg.Context().Done()
	}
	var got []string
	for range 3 {
		msg := k.next(msgs)
		require.True(t, envelope.DeliveryFrom(msg.Context()).Redelivered)
		got = append(got, string(msg.Payload))
		require.True(t, msg.Ack())
	}
	require.Equal(t, "1 2 3", strings.Join(got, " "))
	require.Empty(t, others)
}

// A holder that cannot reach the server gives up before another begins: its messages' contexts end.
func TestOrderedPartition(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	k.publish("1", "2")
	proxy := testenv.Proxy(t, readAddress(k.dir).Addr)
	url := "nats://" + readAddress(k.dir).Token + "@" + proxy.Addr
	far := openTest(t, Factory(), func(c *Config) { c.URL, c.AckWait = url, embeddedAckWait }, "").(*Broker)
	t.Cleanup(func() { _ = far.Close() })
	_, msgs := k.subscribe(far, broker.Subscription{Ordered: true})
	held := []*message.Message{k.next(msgs), k.next(msgs)}
	_, others := k.subscribe(k.b, broker.Subscription{Ordered: true})

	proxy.Pause()
	for i, want := range []string{"1", "2"} {
		msg := k.next(others)
		require.Equal(t, want, string(msg.Payload))
		require.True(t, envelope.DeliveryFrom(msg.Context()).Redelivered)
		require.ErrorIs(t, held[i].Context().Err(), context.Canceled, "the former holder still works on it")
		require.True(t, msg.Ack())
	}
	proxy.Resume()
	held[0].Ack()
	k.publish("3")
	require.Equal(t, "3", string(k.next(others).Payload))
}

// A stream that is made anew counts from one again; its messages are no repeats of the old ones.
func TestPositionOfNewStream(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	_, msgs := k.subscribe(k.b, broker.Subscription{})
	k.publish("old")
	first := k.next(msgs)
	require.True(t, first.Ack())
	<-first.Context().Done()
	require.NoError(t, k.b.link.js.DeleteStream(t.Context(), assetName(k.topic)))
	k.publish("new") // the publisher makes the stream
	second := k.next(msgs)
	require.Equal(t, "new", string(second.Payload))
	require.NotEqual(t, envelope.DeliveryFrom(first.Context()).Position, envelope.DeliveryFrom(second.Context()).Position)
	require.False(t, envelope.DeliveryFrom(second.Context()).Redelivered)
}

// What resync builds on, pinned down for the day the server changes: redeliveries that are due come before new messages,
// in whatever order, and a request without waiting ends when there is nothing more.
func TestServerHandsOutRedeliveriesFirst(t *testing.T) {
	t.Parallel()
	k := newBench(t)
	k.publish("1", "2", "3", "4", "5")
	stream, err := k.b.link.js.Stream(t.Context(), assetName(k.topic))
	require.NoError(t, err)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "g", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second})
	require.NoError(t, err)
	batch, err := consumer.Fetch(3)
	require.NoError(t, err)
	var last time.Time
	for msg := range batch.Messages() {
		if string(msg.Data()) != "1" {
			continue
		}
		<-time.After(400 * time.Millisecond)
		require.NoError(t, msg.InProgress()) // due later than those behind it
		last = time.Now()
	}
	<-time.After(time.Until(last.Add(1500 * time.Millisecond)))
	again, err := consumer.FetchNoWait(10)
	require.NoError(t, err)
	var got []string
	for msg := range again.Messages() {
		meta, err := msg.Metadata()
		require.NoError(t, err)
		got = append(got, fmt.Sprint(string(msg.Data()), "/", meta.NumDelivered))
	}
	require.ElementsMatch(t, []string{"1/2", "2/2", "3/2"}, got[:3])
	require.Equal(t, []string{"4/1", "5/1"}, got[3:])
}
