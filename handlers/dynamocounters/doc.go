// Package dynamocounters is package counters with its tables in DynamoDB: the same messages and the same rules.
//
// A message on "counters.add" adds to one counter. A message on "payments.completed" adds one to each counter that [Config.PerPayment]
// names. The table "counters" has an item with the total of each counter, the table "events" one for each addition; the names begin with
// the configured prefix.
//
// # Guarantees
//
// Both handlers are of the kind of package dynamotx: the events, the new totals and the message's key commit in one transaction or not at all, so a total
// is exact under any number of duplicates, rivals and crashes. What a crash at each step leaves is said there.
//
//   - A total is the sum of the deltas of the counter's events at every commit. The service adds to the total, so no rival's addition is lost.
//   - Counters only grow: a delta is a whole number from 1 to 9223372036854775807, as JSON number or string. Anything else is a permanent failure "delta".
//   - A total never overflows: an addition that would pass 9223372036854775807 is a permanent failure "counter-overflow" and changes nothing.
//   - One key adds to one counter once, for ever: after the key has expired, its message is a permanent failure "counter-event-exists".
//   - A payment can add to 49 counters; more do not fit into a transaction, and are a permanent failure "dynamodb-too-large".
//
// Not promised: the order of events of different messages. Messages that add to one counter at the same moment cancel each other's
// transactions and are planned again; a counter that everything adds to bounds the throughput.
package dynamocounters
