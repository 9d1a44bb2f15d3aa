// Package elsewhere joins a database, which is the truth about keys, with a store of keys elsewhere, such as Redis.
//
// Hints answers "certainly completed" without a transaction. Store holds the leases of external handlers elsewhere; it is a
// keystore.Store over the database's own.
//
// # Guarantees
//
// A hint never hides that the database does not know a key any more: it counts for one epoch of the database, whose name is asked for
// again and again and trusted for keystore.EpochTrust only. An epoch is read before the completion that is noted under it, so that
// a note that comes late, after the key was forgotten, belongs to an epoch that is over. A store elsewhere that is slow, down, empty or
// rolled back costs speed: Hints asks with a short timeout, and leaves it alone for a while after a failure.
//
// A lease elsewhere is asked for only where the database does not know the key. What completes the key is its insert in the database, in the
// transaction of its rows: of two holders one commits, whatever happened to the lease. Order of the steps, and what a crash leaves:
//
//	look at the database  nothing
//	acquire elsewhere     a lease that ends by itself; whoever comes next takes it over and knows that a call may have been made
//	look again            the same; what another holder committed meanwhile is seen here
//	call                  the same
//	insert, then check the token elsewhere, rows, commit
//	                      before the commit: the same. After it: the database knows the key, and the next copy settles the lease
//	complete elsewhere    nothing
//
// Not promised: that a lease survives what the store elsewhere does not survive (its own guarantees say what). A lease that vanishes while
// its call is under way is no lease: another copy of the message may call at the same time, under the same downstream key. A holder whose
// process lives notices at its next renewal.
package elsewhere
