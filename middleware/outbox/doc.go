// Package outbox is the contract of an outbox, and the relay that publishes from it.
//
// A record is written in the transaction of the effect that it tells of, by a handler's commit or by a store's
// Publish. The Relay brings it to the broker:
//
//	              written, committed
//	                      │
//	                      ▼              deliver-at lies ahead: not due yet
//	┌───────────────►  pending  ◄──────────────────────────────┐
//	│                     │ fetched by the owner of its lane   │
//	│                     ▼                                    │
//	│                 publishing                               │ wait is over
//	│    confirmed and    │   failed                           │
//	│    routed ┌─────────┴─────────┐                          │
//	│           ▼                   ├── may yet succeed ──► waiting for its next attempt
//	│        removed                │
//	│                               └── never, or refused MaxAttempts times ──► set aside
//	│                                                                               │ a person
//	└──────────────────────────────────── retried ──────────────────────────────────┤
//	                                                             dropped: removed ◄─┘
//
// # Guarantees
//
// At least once: a record is removed only after the broker confirmed it and routed it. A copy has the same UUID and
// key as the first, so the consumer's middleware removes it. Without such a consumer copies are seen; they come from
// crashes, from lost confirms, and from lanes that change their owner, at most one batch (RelayConfig.Batch) for each such event.
//
// In the order of each ordering key: a record's first copy goes out after the first copies of all records of its ordering key
// with lower ids, over several relays and failures. A record that waits for its next attempt holds back
// those behind it of the same ordering key, and nothing else. One that is set aside holds back nothing. This needs a
// publisher whose confirmed messages are in the order in which they were handed over; see RelayConfig.OrderedBatch.
// Between records without an ordering key, or with different ones, there is no order.
//
// Nothing is set aside for the broker's sake: while it cannot be reached (ErrUnavailable), or has nowhere to put a
// message (ErrUnroutable), records are tried again for ever and no attempt is counted. A refusal that the
// adapter does not classify is counted only if the broker confirmed some other record lately. What breaks the message
// contract, or can never be published (ErrUnpublishable), is set aside at once with its reason.
//
// Not promised: exactly one copy on the broker; an order over topics' consumers; that a record whose deliver-at passed goes out at
// that very moment (Poll, and what is queued before it, come on top).
//
// # What a crash does
//
//   - after the read: nothing happened. The lanes are free when their lease is over, and others publish.
//   - while publishing, or published and not yet marked: the batch goes out again, as copies.
//   - after marking: nothing is repeated.
//   - a relay that was paused for longer than its lease finds its token refused (ErrLaneLost) when it marks; what
//     it published meanwhile are copies.
//
// A relay stops publishing from a lane some time before its lease ends, so that a relay that cannot reach the
// source does not run beside the lane's next owner.
package outbox
