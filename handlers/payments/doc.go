// Package payments moves money between accounts and keeps double-entry books.
//
// A message on "payments.requested" ([Requested]) debits one account, credits another and is confirmed on
// "payments.completed" or "payments.declined" ([Outcome]). A message on "accounts.opened" ([Opened]) opens an
// account and books its opening balance against the equity account of its currency.
//
// # Amounts
//
// An amount is a decimal in the currency's major unit, as a JSON string or number: "78.43", 78.43, "5". It has
// digits, at most one '.', and no more fraction digits than ISO 4217 gives the currency ("5.0" is too precise for JPY, "5.000" for
// EUR). Signs, exponents ("1e3"), commas, spaces, leading zeros and NaN are refused, and so is zero. It is read as text and
// kept as a 64-bit integer of minor units: nothing passes through a float and nothing is rounded.
//
// # Guarantees
//
// Both handlers are transactional. Balances, ledger entries, the row in payments, the confirmation and the message's
// key commit together or not at all: a crash before the commit leaves nothing, a crash after it leaves all, and the
// next delivery is a duplicate. So a payment is made exactly once for each key, whatever is lost or sent twice.
//
//   - The sum of ledger_entries.amount is zero in each currency at every commit, and each balance is the sum of its account's entries.
//   - A customer's balance never goes below zero. A payment without funds is an outcome, not a failure: status "declined", with a
//     row and a message, and its duplicates do not run again. A second try is a new payment_id under a new key.
//   - A refused message (a bad amount, an unknown account, ...) is a permanent failure whose code is the field's name. It leaves no row.
//   - A payment_id is used once. Under a second key it is refused as "payment-id-taken"; under its first key, after that key
//     has expired, the recorded outcome is the result and nothing is booked or sent.
//   - Two payments in transactions of their own never deadlock: both accounts are locked by one statement in the order of their ids. In a group of messages
//     that share a transaction they can; then one of the two rolls back and is run again.
//
// Not promised: order between payments without an ordering key, and anything about rows that are changed by other means than these messages.
package payments
