package brokertest

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

var orderingTests = []test{
	{"OrderOverDrain", testOrderOverDrain},
	{"OrderOverCrash", testOrderOverCrash},
	{"OrderOverNack", testOrderOverNack},
}

const (
	orderKeys = 5
	orderEach = 60
)

// ordered declares an ordered topic and fills it; it skips where order is not declared.
func (k *kit) ordered() broker.Subscription {
	k.Helper()
	b := k.open()
	if b.Capabilities().Ordering != broker.OrderByKey {
		k.Skip("the broker declares no order by ordering key")
	}
	topic := k.name("bt")
	k.declareAs(b, topic, true, "g")
	for n := range orderEach {
		msgs := numberedMessages(orderKeys)
		for i, msg := range msgs {
			msg.Payload = fmt.Appendf(nil, "%d", n)
			msg.Metadata.Set(envelope.OrderingKeyHeader, fmt.Sprintf("order-%d", i))
		}
		require.NoError(k, b.Publisher().Publish(topic, msgs...))
	}
	return broker.Subscription{Topic: topic, Group: "g", Ordered: true, InFlight: 10}
}

// Two replicas, one of them drained in the middle: each message comes once, in its key's order, and no key is
// in flight on both.
func testOrderOverDrain(k *kit) {
	s := newSequence(k, k.ordered())
	s.run(func(r *reader, _ broker.Broker) { require.NoError(k, r.sub.Drain(within(k, k.h.patience()))) })
	require.Empty(k, s.overlap)
	for key, all := range s.byKey {
		require.Equal(k, upTo(orderEach), all, "order of %s", key)
	}
}

// Two replicas, one of them dies in the middle: what comes again comes in order, and nothing is passed over.
func testOrderOverCrash(k *kit) {
	s := newSequence(k, k.ordered())
	s.run(func(_ *reader, b broker.Broker) { k.h.crash(k, b) })
	for key, all := range s.byKey {
		next := 0
		for i, n := range all {
			require.LessOrEqual(k, n, next, "%s: delivery %d passes over a message: %v", key, i, all)
			next = max(next, n+1)
		}
		require.Equal(k, orderEach, next, key)
	}
}

// A nacked message holds back those of its ordering key, also one that is offered to the handlers already, and no others: once the context of
// the nacked delivery has ended, it comes again before them.
func testOrderOverNack(k *kit) {
	b := k.open()
	if b.Capabilities().Ordering != broker.OrderByKey {
		k.Skip("the broker declares no order by ordering key")
	}
	topic := k.name("bt")
	k.declareAs(b, topic, true, "g")
	const each = 4
	for n := range each {
		msg := newMessage(fmt.Sprint(n))
		msg.Metadata.Set(envelope.OrderingKeyHeader, "one")
		require.NoError(k, b.Publisher().Publish(topic, msg))
	}
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", Ordered: true, InFlight: 10})
	for n := range each {
		for range 3 {
			msg := r.next()
			require.Equal(k, fmt.Sprint(n), string(msg.Payload), "it passes over a nacked message of its key")
			time.Sleep(10 * time.Millisecond) // so that the next one is offered
			require.True(k, msg.Nack())
			k.ended(msg, "its nack")
		}
		require.True(k, r.next().Ack())
	}
	other := newMessage("other")
	other.Metadata.Set(envelope.OrderingKeyHeader, "two")
	require.NoError(k, b.Publisher().Publish(topic, other))
	r.ackUntil("other")
}

// sequence notes the deliveries of each ordering key over two replicas.
type sequence struct {
	k   *kit
	sub broker.Subscription

	mu       sync.Mutex
	byKey    map[string][]int
	inFlight map[string][2]int // of each key, on each replica
	overlap  string
	distinct map[string]bool
}

func newSequence(k *kit, sub broker.Subscription) *sequence {
	return &sequence{k: k, sub: sub, byKey: map[string][]int{}, inFlight: map[string][2]int{}, distinct: map[string]bool{}}
}

// run handles everything by two replicas and stops, in the middle, the one that works.
func (s *sequence) run(stop func(r *reader, b broker.Broker)) {
	k := s.k
	k.Helper()
	brokers := []broker.Broker{k.open(), k.open()}
	readers := []*reader{k.subscribe(brokers[0], s.sub), k.subscribe(brokers[1], s.sub)}
	middle := make(chan int, 1)
	var wg sync.WaitGroup
	for i, r := range readers {
		wg.Go(func() { s.handle(i, r, middle) })
	}
	select {
	case working := <-middle:
		stop(readers[working], brokers[working])
	case <-time.After(k.h.patience()):
		require.FailNow(k, "the replicas get nothing")
	}
	k.eventually(func() bool { return s.handled() == orderKeys*orderEach }, "messages are missing after the stop")
	for _, b := range brokers {
		require.NoError(k, b.Close())
	}
	wg.Wait()
}

// handle takes messages as they come and settles them one after the other, so that several are in flight.
func (s *sequence) handle(replica int, r *reader, middle chan<- int) {
	work := make(chan *message.Message, s.sub.InFlight)
	var wg sync.WaitGroup
	wg.Go(func() {
		for msg := range work {
			select { // the work of a handler
			case <-time.After(time.Millisecond):
			case <-msg.Context().Done():
			}
			s.leave(replica, msg)
			msg.Ack()
		}
	})
	for msg := range r.msgs {
		if s.enter(replica, msg) > orderKeys*orderEach/3 {
			select {
			case middle <- replica:
			default:
			}
		}
		work <- msg
	}
	close(work)
	wg.Wait()
}

func (s *sequence) enter(replica int, msg *message.Message) (handled int) {
	key := msg.Metadata.Get(envelope.OrderingKeyHeader)
	var n int
	if _, err := fmt.Sscan(string(msg.Payload), &n); err != nil {
		s.k.Errorf("payload: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.inFlight[key]
	if counts[1-replica] > 0 {
		s.overlap = fmt.Sprintf("%s is in flight on both replicas", key)
	}
	counts[replica]++
	s.inFlight[key] = counts
	s.byKey[key] = append(s.byKey[key], n)
	s.distinct[fmt.Sprint(key, " ", n)] = true
	return len(s.distinct)
}

func (s *sequence) leave(replica int, msg *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := msg.Metadata.Get(envelope.OrderingKeyHeader)
	counts := s.inFlight[key]
	counts[replica]--
	s.inFlight[key] = counts
}

func (s *sequence) handled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.distinct)
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
