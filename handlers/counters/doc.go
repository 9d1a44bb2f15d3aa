// Package counters counts: each message appends an event, and each counter's total is the sum of its events.
//
// A message on "counters.add" ([Add]) adds to one counter. A message on "payments.completed" adds one to each counter that
// [Config.PerPayment] names.
//
// # Guarantees
//
// Both handlers are transactional: the event, the new total and the message's key commit together or not at all, so a total is exact under any
// number of duplicates, rivals and crashes.
//
//   - counters.total is the sum of counter_events.delta of that counter at every commit. Totals are added to inside one statement, so no rival's
//     addition is lost, and counters of one message are taken in the order of their names, so rivals do not deadlock.
//   - Counters only grow: a delta is a whole number from 1 to 9223372036854775807, as JSON number or string. Anything else is a permanent failure "delta".
//   - A total never overflows, on no database: an addition that would pass 9223372036854775807 is a permanent failure "counter-overflow" and changes nothing.
//   - One key adds to one counter once, for ever: after the key has expired, its message is a permanent failure "counter-event-exists" instead of a second event.
//
// Not promised: the order of events of different messages. All messages that add to one counter wait for each
// other's commit; a counter that everything adds to bounds the throughput.
package counters
