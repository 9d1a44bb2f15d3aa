// Package natsbroker is the adapter for NATS JetStream: an external cluster ([Factory], "nats"), and
// a server embedded in the process, with nothing to install ([EmbeddedFactory], "embedded").
//
// Each logical topic has a stream, whose subject is the topic, so that any NATS client publishes to the topic by its
// name. Each group has a durable pull consumer with explicit acks. The external server must be version 2.10 or newer, with JetStream.
//
// # Guarantees
//
// A publish returns nil when the stream has stored the message. The embedded server flushes it to disk first, in one
// go for a batch; an external one survives the loss of a machine with three replicas, or with sync_interval set to
// always. A topic without a stream is an error, not a loss. Within one batch, a message that is refused stops
// those of its ordering key that follow it. Nats-Msg-Id is never set: a deliberate second sending must not be swallowed by the
// broker's window. Other producers may set it; it is Delivery.MessageID here.
//
// A message is delivered until it is acked, and the ack is repeated until the server confirms it. While a message
// is in this process's hands the server is told so, three times in its ack_wait, however long the handler takes.
// A nack is a redelivery after 100 ms, doubling to 5 s. A stream removes what is older than max_age, consumed or not.
//
// An ordered subscription has one active consumer: the holder of a lease in the KeyValue bucket oncemill-leases, renewed every 750 ms
// and free after 3 s without. A holder that cannot renew stops before another begins, and the contexts of its messages end. The next holder waits
// until all that was unsettled is due again, collects and sorts it, and only then goes on; after a drain it need not wait. The server
// numbers a consumer's deliveries, so a delivery that went astray shows as a gap: what follows waits until it has come again.
// A handler that runs on after its context has ended is not stopped by any of this.
//
// Metadata travels as headers, byte for byte. What no NATS header can hold, and names by which NATS steers (Nats-…), travel
// in one header, oncemill-metadata: base64 of a JSON object; where the headers would exceed JetStream's limit all of
// it travels deflated in oncemill-metadata-deflated.
//
// The embedded server belongs to the process that holds a lock on the data folder. Others connect to it over loopback, with a
// token that only the folder's readers know. When it ends, another takes the lock and serves on, on the same folder and where possible
// the same port. The folder must be on a local file system.
//
// What a crash does:
//
//   - of a consumer: its messages are delivered again after ack_wait (30 s; embedded 10 s; ordered at most 5 s), marked as
//     redelivered.
//   - of a publisher: what was not confirmed may be stored or not; a batch is stored whole or, where the server died too, in part.
//   - of the process that serves: the same for every replica on the folder, within a second or so. Acks of the last tenth of a second
//     may be forgotten, so those messages come again. They are marked as redelivered even where the server does not
//     remember: what was handed over is noted in nats-marks, in memory that outlives the process.
//   - of the machine: embedded, nothing that was confirmed is lost. The notes above are; a repeat may come without its mark.
package natsbroker
