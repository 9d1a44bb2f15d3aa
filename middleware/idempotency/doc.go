// Package idempotency is the core: it takes delivered messages, claims their keys, runs their
// handlers in the transaction of the claim, and decides what becomes of a failure.
//
// A message's way through an Engine:
//
//	envelope checked -> key, fingerprint -> lane ticket's turn -> slot -> gate (suspects alone)
//	  -> claim -> handler -> result, outgoing messages, commit -> settle -> ack
//
// # Guarantees
//
// With a transactional handler the effect, the key, the result and the outgoing messages commit
// together or not at all. A crash
//
//   - before the commit: nothing happened; the redelivery runs the handler again;
//   - with the commit's answer lost: the redelivery's claim finds out;
//   - after the commit, before the ack: the redelivery is a duplicate and is acked unrun.
//
// With an external handler (see External) a crash between the lease and its completion leaves the
// outcome unknown; the binding's policy decides, and the rows of Record are written once.
//
// A message is acked only when its effect, its dead letter or its parked copy is durable. It is
// handed back (nacked) only when the engine stops. What a handler does outside its Tx is not covered.
//
// Messages of one ordering key are settled in the order in which the subscriber delivered them (Lanes),
// also while one of them waits for a retry: its successors queue behind its parked row. Messages that run without
// a key are not looked for there.
//
// A Flow is the same for handlers that turn messages into messages, in the transactions of a broker: see there.
package idempotency
