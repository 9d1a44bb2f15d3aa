// Package kafkabroker is the adapter for Apache Kafka, on the client library sarama. A topic's partitions are
// its shards: the ordering key is the record key, and the partition is chosen as Java clients choose it, so foreign
// producers of the same key land in the same partition. Headers are those of watermill-kafka, so plain
// Watermill programs and Oncemill read each other's messages.
//
// # Guarantees
//
// Publishing: a nil outcome says that the record is in all in-sync replicas (acks=all, idempotent producer). An
// error says that it is not, or that it is unknown whether it is; publishing the message again may double it, under its
// same identities. A record that the cluster refuses for its size fails with outbox.ErrUnpublishable; a topic that
// does not exist is made (topology "declare") or fails with outbox.ErrUnroutable. How much a confirmed record
// survives is the topic's replication: Capabilities says so, with caveats for topics with one replica.
//
// Consuming: a group starts at the oldest record and sees committed records only. Many records of a partition are in
// flight, acks come in any order, and the committed offset never passes a record that is not settled, also when it was
// nacked. A nacked record is delivered again in this process after a delay (100 ms, growing to 5 s); records behind
// it with the same key wait for it, others go on. A message's context ends when the commit covers it; where an unsettled record stands
// before it, when its ack is noted: such an ack takes effect with the commit of the earlier record, and is lost where that one is handed back.
//
// At most Window records of a partition are delivered beyond its committed offset. Each commit carries, as its metadata,
// the offset below which records may have been delivered; the next owner of the partition marks those
// as redelivered. So after a crash at most Window records of a partition are suspects, after a clean stop none.
//
// Order: records of one key reach one replica at a time, in their order. The adapter hands over many of them at once and
// does not wait for one to be settled before the next.
//
// A rebalance takes all partitions of a group's members (sticky assignment, eager protocol: most come back). When it
// begins nothing more is handed over; handlers that are running have SettleTimeout to finish, under a
// living context, and what they settled is committed; then the contexts of the others end and their late acks are
// ignored. So no handler holds a rebalance for longer. When the member was thrown out of the group (a pause
// longer than SessionTimeout) the contexts end at once, and nothing is committed for the lost generation: the group coordinator
// refuses it.
//
// What a crash does at each step: before the commit of an offset its record is delivered again, to whoever owns the partition
// next; after it, never. Between publishing and the outcome the record may be there or not.
//
// Transactions (keys: kafka), for handlers that turn messages into messages: consumed offsets, produced messages and the keys of what
// was handled commit in one Kafka transaction. The keys are in the compacted topic GROUP-keys, partition by partition as the input is, and in
// the memory of the partition's owner. There is one transactional id for each group and partition. A new owner, in this order, fences the previous one by
// it, reads the keys to their end, fetches the offsets, and consumes; offsets are sent with the member's generation (KIP-447), so that an owner
// that was fenced late, or fences late, commits nothing. So each output is visible once to consumers that read committed records, and a producer's
// second sending into the same partition is removed for as long as its key is kept. After any failure of a transaction but a record that is too
// large, the partition is given up and taken over anew: nothing in memory counts.
//
// What a crash does at each step of a transaction: before the commit, everything that it wrote stays unseen, the next owner or transactionTimeout aborts it,
// and its messages come again; after the commit was asked for, the next owner waits until it is done or aborted, and reads which.
//
// Keys are counted from the broker's time of their commit and forgotten after the retention by a null record, but not before what stood in the
// partition at the takeover is committed, unless there is no room. A partition with max_keys keys waits until some expire; none is forgotten before
// its retention is over.
//
// At most 512 records are under way beyond the committed offset; after an owner that did not leave in order they count as redelivered.
//
// Not promised: that a second sending is recognised in another partition, that a reader of uncommitted records sees nothing of aborted
// transactions. That a member notices a network that swallows packets before 15 seconds have passed (what it delivers until then is
// within the bound that its last commit named). A lag of zero behind the markers of foreign transactions: they have offsets that no
// consumer sees; CaughtUp knows them. Order between keys or partitions, and order for a key whose topic gets more partitions. A
// topic's retention removes records, consumed or not. Kafka forgets a group's offsets some time (default 7 days) after
// its last member left (offsets.retention.minutes); CommittedOffsets lets a start-up gate ask before it begins at the oldest record again.
package kafkabroker
