// Package sqsbroker is the broker that is Amazon SQS, with FIFO queues.
//
// SQS has queues and no topics. Here each group of a topic has a queue of its own, and a publisher sends each message to all of
// them. It finds them by their names, which begin with what QueuePrefix says, or takes them from Config.Topics.
//
// A message's body is its payload where that is text as XML knows it, as SQS demands; other payloads travel in base64 and are marked by the
// attribute "oncemill-body". SQS takes ten attributes: UUID, idempotency key, ordering key and some more metadata are attributes of their own, the rest
// is a JSON object in "oncemill-metadata". Attributes of foreign producers are metadata. Their deduplication id is
// envelope.Delivery.MessageID (key source "sqs-deduplication-id"), and their message group, unless it is the same text, the ordering key.
//
// # Guarantees
//
// Promised:
//
//   - Publishing returns nil for a message only when every queue of its topic has confirmed its entry of the batch. A topic without any queue is
//     outbox.ErrUnroutable. A message of more than 1 MiB, as SQS counts it, is outbox.ErrUnpublishable; payloads of 600 KiB fit whatever they are.
//   - A new group misses nothing that is published after Declare: it returns when the queue is listed and, where the topic had
//     others, when Config.Discover has passed, for which publishers remember a topic's queues.
//   - The message group is the ordering key; a message without one is a group of its own, so that it waits for no other. Messages of one PublishBatch
//     with one ordering key are sent one after the other, and not at all behind a refused one.
//   - Of a message group one message is in flight at a time, over all replicas, also without Subscription.Ordered. What was
//     received behind a message that is handed back is handed back unseen.
//   - The deduplication id is the message's UUID. A publish that is repeated because its answer was lost adds nothing within five minutes. What somebody
//     sends again deliberately has another UUID, and is not swallowed; a redrive of our dead letters does not go through the broker at all.
//   - What a process holds stays its own while it lives, up to SQS's 12 hours: its visibility is extended when a third of it has passed. A delivery
//     that could not be extended in time is given up, and its context ends, before the service may give it to somebody else.
//   - A nack is a redelivery after 1 s, doubled with each delivery up to 5 s, to any replica; on a stop, and of what was never handed over, at once.
//   - Acks are applied in any order, ten in a request. Entries that fail for a reason of the service's are sent again; the context of a message ends when its
//     entry is confirmed. An ack after the visibility ran out is logged, and the message comes again.
//
// Under which condition:
//
//   - The queues are FIFO queues. Operators who own the topology may give them any retention, visibility, encryption and redrive policy.
//   - A redrive policy moves a message away after so many receipts; a hand-back is one, too. Let it allow many more (100) than Oncemill's own attempts: dead
//     letters have their place there.
//   - A queue lets at most 120,000 messages be in flight, and looks for free message groups among the first 120,000 messages: a longer
//     backlog of one group holds up the others.
//   - CaughtUp rests on approximate counts: three looks over Config.CaughtUpAfter must agree. Where other replicas always have something
//     in flight it waits until the queue's retention period has passed.
//   - The process may call ListQueues, GetQueueUrl, GetQueueAttributes, SendMessage, ReceiveMessage, DeleteMessage, ChangeMessageVisibility, and with
//     topology "declare" CreateQueue.
//
// Not promised:
//
//   - That a message is kept for longer than the queue's retention period, 14 days at most.
//   - That a publish without an answer did not happen, in some queues or in all. Publish it again under the same UUID.
//   - That a receipt count is a count of handlers' runs: a message that was received and handed back unseen comes marked as redelivered.
//   - That a queue ends with its group: delete the queue of a group that was given up, or publishers go on filling it.
//
// A crash of the publisher: each queue has the message or not, and its sender does not know; sent again, it is whole. Of a consumer: what it held, and what was on
// its way to it, comes again, marked, when Config.Visibility has passed; between the handler's end and the deletion, the same.
package sqsbroker
