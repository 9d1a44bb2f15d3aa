package brokertest

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
)

var caughtUpTests = []test{
	{"CaughtUpAfterBacklog", testCaughtUpAfterBacklog},
	{"CaughtUpWhenEmpty", testCaughtUpWhenEmpty},
	{"CaughtUpByAnother", testCaughtUpByAnother},
}

func numberedMessages(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i, payload := range numbered("m", n) {
		msgs[i] = newMessage(payload)
	}
	return msgs
}

func (r *reader) notCaughtUp(why string) {
	r.k.Helper()
	select {
	case <-r.sub.CaughtUp():
		require.FailNow(r.k, "CaughtUp closed: "+why)
	default:
	}
}

// CaughtUp waits for the settlement of the whole backlog, nacked messages included; acks of later messages do not stand in
// for it, and later messages in flight do not delay it.
func testCaughtUpAfterBacklog(k *kit) {
	b, topic := k.declared("g")
	k.publish(b, topic, numbered("m", 20)...)
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g", InFlight: 32})
	held := r.take(20)
	r.silent("nothing else was published")
	r.notCaughtUp("nothing is settled")
	for _, msg := range held[2:] {
		require.True(k, msg.Ack())
	}
	nacked := string(held[1].Payload)
	require.True(k, held[1].Nack())
	k.publish(b, topic, "later", "later still")
	more := map[string]*message.Message{}
	for _, msg := range r.take(3) {
		more[string(msg.Payload)] = msg
	}
	require.Contains(k, more, nacked)
	require.True(k, more["later"].Ack())
	require.True(k, more[nacked].Ack())
	k.ended(more["later"], "its ack")
	r.silent("nothing else was published")
	r.notCaughtUp("one message of the backlog is still in flight")
	require.True(k, held[0].Ack())
	k.signalled(r.sub.CaughtUp(), "CaughtUp stays open though the backlog is settled")
	require.NoError(k, more["later still"].Context().Err())
}

func testCaughtUpWhenEmpty(k *kit) {
	b, topic := k.declared("g")
	k.signalled(k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"}).sub.CaughtUp(), "CaughtUp stays open on an empty queue")
}

// The backlog may be settled by another replica.
func testCaughtUpByAnother(k *kit) {
	b, topic := k.declared("g")
	payloads := numbered("m", 60)
	k.publish(b, topic, payloads...)
	one := k.subscribe(k.open(), broker.Subscription{Topic: topic, Group: "g", InFlight: 4})
	two := k.subscribe(k.open(), broker.Subscription{Topic: topic, Group: "g", InFlight: 4})
	for _, r := range []*reader{one, two} {
		go func() {
			for msg := range r.msgs {
				msg.Ack()
			}
		}()
	}
	k.signalled(one.sub.CaughtUp(), "CaughtUp of the first replica stays open")
	k.signalled(two.sub.CaughtUp(), "CaughtUp of the second replica stays open")
}
