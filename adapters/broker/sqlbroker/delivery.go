package sqlbroker

import (
	"bytes"
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// verdict is what is to become of a delivery.
type verdict int

const (
	ack verdict = iota
	nack
	handBack  // at once, for any replica
	untouched // the same, of one that was not delivered
)

// delivery is one message in this subscriber's hands, from its claim until its settlement reached the server.
// Its fields belong to the subscriber's lock, but those set at its claim.
type delivery struct {
	row
	holder  *holding
	key     string // its ordering key, in an ordered subscription
	nacks   int    // in our hands, in an ordered subscription
	due     time.Time
	verdict verdict

	cancel context.CancelFunc
	taken  chan struct{} // closed when the delivery is taken away
}

func newDelivery(r row, holder *holding, ordered bool) *delivery {
	d := &delivery{row: r, holder: holder, taken: make(chan struct{})}
	if ordered {
		metadata, _ := decodeMetadata(r.metadata)
		d.key = metadata[envelope.OrderingKeyHeader]
	}
	return d
}

// message builds the Watermill message of one hand-over, in a context of its own.
func (d *delivery) message(topic string) *message.Message {
	metadata, apart := decodeMetadata(d.metadata)
	info := envelope.Delivery{
		Broker: Name, Position: topic + "/" + strconv.FormatInt(d.offset, 10), Session: d.holder.name,
		Redelivered: d.count > 1 || d.nacks > 0, Apart: apart,
	}
	ctx, cancel := context.WithCancel(envelope.WithDelivery(context.Background(), info))
	d.cancel = cancel
	msg := message.NewMessageWithContext(ctx, envelope.ReceivedUUID(d.uuid, info), bytes.Clone(d.payload))
	msg.Metadata = metadata
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

func compareOffset(a, b *delivery) int { return cmp.Compare(a.offset, b.offset) }
