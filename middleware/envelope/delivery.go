package envelope

import "context"

// Delivery is what a broker adapter knows of one delivery. It travels in the
// message's context, never in its metadata: no producer can forge it and no
// copy of the message carries it on.
type Delivery struct {
	// Broker is the adapter's name, such as "rabbitmq".
	Broker string

	// Position is the message's place in the broker (topic/partition/offset,
	// stream/sequence) where it is the same on every redelivery, else empty.
	Position string

	// Session names the connection, channel or assignment of the delivery. Two
	// deliveries of different sessions have no order between them.
	Session string

	// MessageID is the identity that the broker's protocol itself carries: AMQP
	// message-id, Nats-Msg-Id, the SQS deduplication id. Empty where there is none.
	MessageID string

	// RecordKey is the Kafka record key. Nil where there is none.
	RecordKey []byte

	// Redelivered reports that the broker says, or the adapter must assume, that
	// this message may have been delivered before and not been settled: an AMQP
	// redelivery, a delivery count above one, the first records of a Kafka
	// assignment, as many as can be in flight.
	Redelivered bool

	// Apart names the headers that have no text form with their kind: "null", "bool", "table",
	// "array", or "bytes" where they are not valid UTF-8. They are not in the metadata: a null header is a missing one.
	Apart map[string]string
}

type deliveryKey struct{}

// WithDelivery returns a context that carries d.
func WithDelivery(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// DeliveryFrom returns the delivery that ctx carries; the zero Delivery where a
// subscriber that is not ours delivered the message.
func DeliveryFrom(ctx context.Context) Delivery {
	d, _ := ctx.Value(deliveryKey{}).(Delivery)
	return d
}
