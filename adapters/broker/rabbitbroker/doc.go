// Package rabbitbroker is the RabbitMQ adapter, on quorum or classic queues.
//
// A logical topic is a durable fanout exchange of its name; each group has a durable queue "topic:group" bound to it.
// Both names can be mapped to what a company already has (Config.Topics). Messages are those of watermill-amqp: the UUID is
// the header _watermill_message_uuid, metadata are string headers, so that plain Watermill programs read ours and are read.
// It uses watermill-amqp's marshaler and topology builder; its publisher and
// subscriber do not hold the contract of package broker and are replaced, on the same client library.
//
// # Guarantees
//
// Promised:
//
//   - Publishing returns nil for a message only when the broker confirmed it, which a quorum queue does when a majority has it
//     on disk, and no return came: a confirm alone is also sent for a message that no queue takes. Such a message is an
//     outbox.ErrUnroutable. RabbitMQ cannot keep a message of a topic that has no queue yet; declare its groups first.
//   - Every message is delivered until it was acked. What is in flight when a process, channel or connection dies
//     comes again, marked as redelivered; contexts of the messages end, and a late ack is ignored.
//   - A drained subscriber's acks have reached the broker when Drain returns: it closes its channel, which the broker answers after them.
//   - A nack is held for 100 ms, doubled for each further nack of the message up to 5 s, then
//     requeued. It holds its place among the messages in flight meanwhile: as many messages as may be in flight, nacked each
//     time, keep the others waiting.
//   - With Subscription.Ordered the queue has one active consumer (x-single-active-consumer), so the whole queue is in order
//     on one replica. A drain of it gives up the queue only when everything that was handed over is settled.
//   - A header that is not text (null, bool, table, array, bytes that are no UTF-8) is named in
//     Delivery.Apart; numbers, timestamps and decimals become text. None makes a message unreadable.
//
// Under which condition:
//
//   - x-single-active-consumer and the queue's type and limits are fixed when a queue is made. With topology "verify" or "off"
//     they are the operator's, and AMQP does not show them: then order and durability are what the operator made.
//   - RabbitMQ 4 drops a message after 20 deliveries unless told otherwise. Queues declared here have a limit that is never
//     reached (Config.DeliveryLimit); a policy with a lower one wins, and AMQP does not show it. A queue that exists with another limit is refused at Declare, with
//     the broker's text.
//
// Not promised:
//
//   - Order without Subscription.Ordered; order within a PublishBatch after a refusal (OrderedBatch is false).
//   - That a message without a message-id and without Watermill's header has the same UUID when it is delivered again: RabbitMQ gives
//     it no identity. Its idempotency key must come from elsewhere.
//   - Messages of a queue that somebody deletes. It is declared again by the next session of its consumer.
//   - An upper bound of the time until a redelivery.
//   - That an unconfirmed publish did not happen: when the connection is lost before the confirm, or the context ends, the message
//     may or may not be there. Publish it again under the same UUID.
//   - CaughtUp sees what other replicas have in flight only when it is requeued.
//
// A crash: before the confirm, the message may be published and its sender does not know; between delivery and ack, the message
// comes again; between ack and its arrival at the broker, the same. The broker's restart loses no confirmed message, and both
// sides reconnect within 15 seconds of its return.
//
// While the broker holds back publishers (memory or disk alarm) PublishBatch waits until its context or Config.PublishTimeout ends.
// A delivery that is not settled within the broker's consumer_timeout (30 minutes) is taken away: the channel is opened again, the
// contexts of what was in flight end, and all of it comes again.
package rabbitbroker
