// Package dynamopayments is package payments with its books in DynamoDB: the same messages, amounts and rules.
//
// A message on "payments.requested" debits one account, credits another and is confirmed on "payments.completed" or "payments.declined". A
// message on "accounts.opened" opens an account and books its opening balance against the equity account of its currency. The tables are
// "accounts", "payments" and "ledger", whose items are the entries of an account; the names begin with the configured prefix. Amounts are
// kept in minor units, as numbers of 64 bits.
//
// # Guarantees
//
// Both handlers are of the kind of package dynamotx: balances, ledger entries, the payment, the stored confirmation and the message's key commit in one
// transaction or not at all, so a payment is made exactly once for each key, whatever is lost or sent twice; its confirmation leaves
// after that, under one identity. What a crash at each step leaves is said there.
//
//   - The sum of all ledger entries is zero in each currency at every commit, and each balance is the sum of its account's entries. A read of several
//     items that is no transaction of the service may see some before a payment and some after it.
//   - A customer's balance never goes below zero: the transaction has that condition. A payment without funds is an outcome, not a
//     failure: it is declined on the condition that the funds are missing at that moment, with a record and a message, and its duplicates do not run again.
//   - A refused message (a bad amount, an unknown account, ...) is a permanent failure whose code is the field's name. It leaves nothing.
//   - A payment_id is used once. Under a second key it is refused as "payment-id-taken"; under its first key, after that key
//     has expired, the recorded outcome is the result and nothing is booked or sent.
//
// Not promised: order between payments without an ordering key, and anything about items that are changed by other means than these messages. Payments of
// one account at the same moment cancel each other's transactions and are planned again, and so are opening balances of one currency.
package dynamopayments
