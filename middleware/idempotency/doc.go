// Package idempotency is the core: it takes delivered messages, claims their keys, runs their
// handlers in the transaction of the claim, and decides what becomes of a failure.
package idempotency
