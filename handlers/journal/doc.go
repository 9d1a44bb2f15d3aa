// Package journal keeps an append-only log: every message on "journal.append", "payments.completed" and "payments.declined" becomes
// one entry with its body, unchanged and whatever it is, and its idempotency key.
//
// # Guarantees
//
// The handlers are transactional: the entry and the message's key commit together or not at all, so there is exactly one entry for each
// scope and key, whatever is lost or sent twice.
//
//   - Entries are never changed or removed: the database itself refuses UPDATE and DELETE (on PostgreSQL TRUNCATE too; on MySQL who has the right to drop
//     the table can truncate it) on journal_entries. An
//     operator who must remove old entries disables the trigger first, on purpose.
//   - One key has one entry for ever: after the key has expired, its message is a permanent failure "journal-entry-exists" instead of a second entry.
//   - The body is kept byte by byte. recorded_at is the database's clock.
//
// Not promised: that ids have no gaps (a failed attempt uses one up), or that they, or recorded_at, follow the order of commits.
package journal
