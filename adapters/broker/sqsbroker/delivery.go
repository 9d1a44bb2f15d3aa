package sqsbroker

import (
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// verdict is what is to become of a delivery.
type verdict int

const (
	undecided verdict = iota
	ack
	nack
	handBack // at once, for any replica
)

// delivery is one message in this subscriber's hands, from its receipt until its settlement reached the service.
// Its fields belong to the subscriber's lock, but those set at its receipt.
type delivery struct {
	m       types.Message
	id      string
	receipt string
	group   string
	count   int // receipts, this one included

	until     time.Time // when the service may give it to somebody else, as we count
	extending bool      // a request that extends it is on its way
	verdict   verdict
	due       time.Time // of the next attempt to settle
	tries     int
	cancel    context.CancelFunc
	taken     chan struct{} // closed when the delivery is taken away
}

func newDelivery(m types.Message, until time.Time) *delivery {
	count, err := strconv.Atoi(system(&m, types.MessageSystemAttributeNameApproximateReceiveCount))
	if err != nil {
		count = 2 // not known: it may have been delivered
	}
	return &delivery{
		m: m, id: aws.ToString(m.MessageId), receipt: aws.ToString(m.ReceiptHandle), count: count, until: until, taken: make(chan struct{}),
		group: system(&m, types.MessageSystemAttributeNameMessageGroupId),
	}
}

// sent is when the service took the message.
func (d *delivery) sent() time.Time {
	n, err := strconv.ParseInt(system(&d.m, types.MessageSystemAttributeNameSentTimestamp), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(n)
}

// message builds the Watermill message, in a context of its own.
func (d *delivery) message(topic, session string) *message.Message {
	r := decode(&d.m)
	if _, has := r.metadata[envelope.OrderingKeyHeader]; !has {
		if key := r.orderOf(&d.m); key != "" {
			r.metadata[envelope.OrderingKeyHeader] = key
		}
	}
	info := envelope.Delivery{
		Broker: Name, Position: topic + "/" + d.id, Session: session, Redelivered: d.count > 1, Apart: r.apart,
		MessageID: system(&d.m, types.MessageSystemAttributeNameMessageDeduplicationId),
	}
	ctx, cancel := context.WithCancel(envelope.WithDelivery(context.Background(), info))
	d.cancel = cancel
	msg := message.NewMessageWithContext(ctx, envelope.ReceivedUUID(r.uuid, info), r.payload)
	msg.Metadata = r.metadata
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
