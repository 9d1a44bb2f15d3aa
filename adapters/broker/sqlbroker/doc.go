// Package sqlbroker is the broker that is a database: PostgreSQL 13, MySQL 8.0.19, MariaDB 10.6, or later; the connection string tells
// which. What one database spells its own way stands behind the interface server, so that another one is another implementation of it.
//
// A topic is watermill-sql's message table for that database, "watermill_<topic>", with payloads of any kind (BYTEA, LONGBLOB): plain Watermill
// publishers write to it, and plain Watermill subscribers read from it, on PostgreSQL with GeneratePayloadType set to BYTEA. A table that exists with JSON payloads, which is
// watermill-sql's default, is used as it is; then payloads must be JSON. Messages are published to that table; the subscriber
// is another one, because watermill-sql's lets one handler run in the whole cluster and waits for every open transaction of the server.
//
// A group has a queue: a trigger on the topic's table puts a row for each new message into oncemill_sql_deliveries, in the publisher's own
// transaction. The row is there exactly when the message is committed, whoever wrote it, at whichever isolation level, in whatever order
// transactions commit; so there is no position that could pass a message over, and a dump can be restored elsewhere. A
// subscriber claims rows (FOR UPDATE SKIP LOCKED), many at once, and deletes them when they are acked.
//
// # Guarantees
//
// Promised:
//
//   - Publishing returns nil for a message only when its transaction is committed, with synchronous_commit. Messages of one PublishBatch are written
//     in chunks of up to 1000, each in one transaction, in their order.
//   - Every message is delivered to each group until it was acked. A group that is declared later begins at the oldest message that is
//     still there; declaring it waits for transactions that wrote to the topic, so that none is missed, and keeps publishers of the
//     topic waiting for at most two seconds at a time. Then what is there is put into its queue, a portion in each transaction.
//   - What a process holds stays its own while it lives: it says so every sixth of Config.Visibility. It stops, and the contexts of its messages end, when
//     it could not say so for three quarters of that time; others take over after all of it. The server's clock alone is compared.
//   - A nack is a redelivery after 100 ms, doubled with each delivery up to 5 s, to any replica. Redeliveries are counted by the server.
//   - Acks are applied in any order, many in one transaction. The context of a message ends when that has committed.
//   - With Subscription.Ordered one consumer of the group is active, and messages come in the order of their offsets; a nacked one
//     stays with its replica, and holds back those of its ordering key, for 100 ms up to 1 s. A message that a publisher wrote after another one's publish
//     had returned has a higher offset, so the order of each key is that of its publisher.
//   - A transaction that stays open stalls nothing but its own messages. While one is open the server cannot forget
//     settled messages; claims begin behind them, and look at the beginning again after ten times what the last such look took, at
//     least every 10 seconds. So new messages are not delayed; nacked, freed and late-committed ones may be, by up to 10 seconds and the look itself.
//   - Topics do not share tables: at most 45 characters keep every name below the 63 or 64 that servers know, and a table that is something
//     else is refused, as are topics with capitals where the server folds the names of tables.
//   - A settled message is deleted when its retention has passed and every group of the topic has settled it.
//
// On MySQL and MariaDB, where nothing notifies other processes: a message of this process is delivered at once, one of another after Poll at the latest, and
// sooner where messages came a moment ago. Claims lock single rows under READ COMMITTED and pass over what rivals have locked, so that
// neither they nor publishers at any isolation level wait for gaps. Settings that weaken durability (innodb_flush_log_at_trx_commit,
// sync_binlog) are read at start and told as a caveat.
//
// Under which condition:
//
//   - The database keeps what it commits: fsync is on, and after a failover to a replica without a confirmed commit, that is lost.
//   - With topology "verify" or "off" the triggers are the operator's; Declare in "verify" finds a missing or disabled one.
//   - On MySQL, all of one topic's publishers write to one server where order matters (several primaries number messages each their own way), and whoever
//     declares has the right TRIGGER, with log_bin_trust_function_creators=1 where binary logs are written. Tables are InnoDB's.
//   - Sessions that apply a logical replication (session_replication_role = replica) do not fire triggers: their messages reach no group.
//   - Through a PgBouncer in transaction mode, statements find their plans without the settings that are made here for a
//     session, and notifications do not arrive: polling finds messages.
//   - Plain Watermill subscribers of the topic keep positions of their own, which the clean-up does not know: they must
//     read within the retention, or it must be negative. On MySQL they read under SERIALIZABLE and lock the end of the
//     topic's table while they handle a batch: publishers wait for them. Plain publishers make nobody wait.
//
// Not promised:
//
//   - Order without Subscription.Ordered; order between publishers; more than one active replica for an ordered subscription.
//   - That a publish without an answer did not happen: when the connection is lost during the commit, or the context ends, the message may or
//     may not be there. Publish it again under the same UUID.
//   - That a group's queue ends with the group: where one is given up, delete it, or its topic is never cleaned up:
//     DROP TRIGGER oncemill_fan_out_<id> (on PostgreSQL: ON "watermill_<topic>"), then its rows in oncemill_sql_deliveries and oncemill_sql_queues.
//
// A crash of the publisher: before its commit, nothing is there; after it, everything, and its sender does not know. Of a consumer: between claim
// and ack, its messages come again, marked, when Config.Visibility has passed; between the handler's end and the commit of its ack, the
// same. Of the server: nothing that was committed is lost; claims survive it, so that a message which is being handled is not
// delivered to another replica, and settlements are sent again when it is back.
package sqlbroker
