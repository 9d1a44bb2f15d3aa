package natsbroker

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// delivery is one message in this subscriber's hands, from its arrival until its settlement reached the
// server. Its fields belong to the subscriber's lock, but those set at its arrival.
type delivery struct {
	seq     uint64 // in the stream
	header  nats.Header
	payload []byte

	reply    string // where its settlement goes; a later delivery of the same message replaces it
	again    bool   // was, or may have been, delivered before
	nacks    int    // by this subscriber, for the delay
	due      time.Time
	waiting  bool   // for due, after a nack of an ordered message
	key      string // its ordering key, in an ordered subscription
	count    uint64 // deliveries by the server
	touched  time.Time
	settling bool
	handed   bool // holds one of the subscription's slots for handlers

	msg    *message.Message // what was handed over last
	cancel context.CancelFunc
	taken  chan struct{} // closed when the delivery is taken away
}

// arrival is what a delivered message says of its place.
type arrival struct {
	seq      uint64 // in the stream
	consumer uint64 // in the consumer's deliveries
	count    uint64 // how often it was delivered
}

func arrivalOf(m *nats.Msg) (arrival, error) {
	meta, err := m.Metadata()
	if err != nil {
		return arrival{}, fmt.Errorf("reading a delivery: %w", err)
	}
	return arrival{seq: meta.Sequence.Stream, consumer: meta.Sequence.Consumer, count: meta.NumDelivered}, nil
}

func newDelivery(m *nats.Msg, a arrival) *delivery {
	return &delivery{
		seq: a.seq, header: m.Header, payload: m.Data,
		reply: m.Reply, count: a.count, again: a.count > 1,
		touched: time.Now(), taken: make(chan struct{}),
	}
}

// message builds the Watermill message of one hand-over, in a context of its own.
func (d *delivery) message(broker, session, stream string) *message.Message {
	r := decodeHeaders(d.header)
	info := envelope.Delivery{
		Broker: broker, Session: session, MessageID: r.messageID, Apart: r.apart, Redelivered: d.again,
		Position: stream + "/" + strconv.FormatUint(d.seq, 10),
	}
	ctx, cancel := context.WithCancel(envelope.WithDelivery(context.Background(), info))
	payload := d.payload
	if d.nacks > 0 { // the handler may have changed the first one
		payload = append([]byte(nil), payload...)
	}
	msg := message.NewMessageWithContext(ctx, envelope.ReceivedUUID(r.uuid, info), payload)
	msg.Metadata = r.metadata
	d.msg, d.cancel = msg, cancel
	return msg
}

// take ends the delivery without a settlement: it is somebody else's. The subscriber's lock is held.
func (d *delivery) take() {
	select {
	case <-d.taken:
	default:
		close(d.taken)
	}
}

func compareSeq(a, b *delivery) int { return cmp.Compare(a.seq, b.seq) }

// nackDelay grows with the deliveries, so that nothing loops hot.
func nackDelay(times int, slowest time.Duration) time.Duration {
	const first = 100 * time.Millisecond
	return min(first<<min(max(times-1, 0), 10), slowest)
}
