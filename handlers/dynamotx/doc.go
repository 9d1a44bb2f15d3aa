// Package dynamotx is a kind of handler whose effect lies in DynamoDB: the conditional writes of a message, its key, its result and its outgoing
// messages commit in one TransactWriteItems.
//
// A [Plan] reads and decides; the kind adds the key and commits. A [Handler] is declared as an external handler:
//
//	db := dynamotx.New(cfg.DynamoDB, dynamotx.Table{Name: "seats", Partition: "seat"})
//	b.OnExternal("seats.wanted", dynamotx.Handler{DB: db, Plan: dynamotx.JSON(book), MaxPayload: b.MaxPayload}.External())
//
// # Guarantees
//
// The writes of a message happen exactly once while the keys table remembers its key, whatever crashes, is lost or is sent twice. Its outgoing
// messages are recorded exactly once, with the writes, and leave after them, also where the message never comes again.
//
//   - Each transaction puts an item with the message's key (handlers.Key) on the condition that there is none, or only one that has
//     expired. So of two replicas that run one message at once, also where one has lost its lease, one commits; the other is
//     cancelled, and gets the first one's result with the cancellation. The same answer comes to a message that is run again, which records nothing.
//   - A plan's own conditions guard what it has read. Where one fails, or another transaction is in the way, the message is planned anew with
//     fresh reads, up to ten times; then it is a failure that is tried again later. What is not in a condition is not guarded.
//   - Outgoing messages are records of the outbox table. handlers.External.Outbox is an outbox.Source of them: the application runs a relay for it, whose
//     promise is that of package outbox (in the order of each ordering key; a copy, after a crash, has the same identities). Their
//     identities derive from the handled message, or are the plan's.
//   - A refusal (handlers.Permanent) of a plan writes nothing. It is believed only after a look at the keys table, as are the
//     service's own. A transaction of a replica that has lost its lease may still commit after that look, where its conditions hold: a redrive of the
//     dead letter finds it.
//   - More than 100 writes with the key and the messages, a Put of more than 400 KB and more than 4 MB together are refused before anything is sent, as is a
//     message that could not be published. The service's own refusals are permanent failures, too; throttling is tried again.
//
// What a crash leaves: before the transaction, nothing, and the next attempt plans anew. After it, or when its answer is lost,
// everything is in DynamoDB and the message is not settled; its outgoing messages leave, and the next attempt, if there is one, finds the key and goes on with
// what is stored. After the SQL commit, before the ack: the redelivery is a duplicate that does not reach DynamoDB.
//
// The relays' leases are by the service's time, from the Date of its answers (package awsclock), never by the clock of a machine; a dead relay's lanes are
// taken over up to three seconds after its lease. Ids come from a counter for each lane, so what is decided on another transaction's effects
// has higher ids than that one's messages. A record stays until the broker has confirmed it; nothing expires. Somebody who removes its items loses it; a
// payload of which a part was removed is not published, and its record says so.
//
// The keys table remembers a key for [Config.Retention], by the clocks of the replicas, whose difference may be an hour. Items that the service
// removes late count as absent from then on. A message that is taken up again later than that after its first attempt is parked in
// doubt instead of being planned again; as long as the keys table knows it, "oncemill keys resolve --as retry" is always right. Set the retention to at
// least that of the binding. A copy that comes when the SQL database has forgotten the key and the keys table has not has no second
// effect, and sends nothing again. When both have forgotten it, it is a new message.
//
// Not promised: that other programs see the writes and the messages at one moment, and anything about items that are changed by
// other means. A transaction costs twice the write units, and writers of one item get in each other's way: spread what is written often. An
// outgoing message costs two transactional writes and one write of a counter; a relay reads each lane at each look, and with it the records that wait there
// for their next attempt (without their payloads where those are large; what is delayed is not read).
package dynamotx
