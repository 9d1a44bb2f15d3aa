// Package email sends one letter for a message.
//
// A message on "payments.completed" sends a confirmation whose recipient, subject and text come from the configuration. A message on
// "email.requested" ([Requested]) sends what it says. Each letter that was sent has a row in letters and, where the
// setting announce is on, is announced on "email.sent" ([Sent]).
//
// # Letters
//
// A letter is plain text in UTF-8 for exactly one recipient. Its Message-ID is a function of the binding's scope and the idempotency
// key, the same on every attempt: <UUID@domain>. No field can add a header or a recipient: a control character in an address, name or subject, also one
// that an encoded word hides, is a permanent failure with the field as its code. So are a subject of more than 255 characters, an address that is not exactly one
// "user@example.org" or "Name <user@example.org>", and an address that is not ASCII.
//
// # Guarantees
//
// The handlers are external: a letter cannot be rolled back. What is promised depends on the transport.
//
// folder: exactly one file for each key. A letter is a file named by its Message-ID, written beside, flushed, and then linked to its name, which fails
// where the name is taken; so an attempt after a crash finds the first one's file and sends nothing. The policy for unknown outcomes is "retry". A crash in
// between may leave a file that begins with a dot; nothing reads it.
//
// smtp: at most one letter for each key without a person's decision, and exactly one unless the outcome is unknown.
//
//   - The connection fails, TLS or the login fails, or the server answers 4xx: no letter was accepted; it is tried again.
//   - 5xx to RCPT TO, to DATA or to the letter: a permanent failure "smtp-refused". (530, which asks for a login, is the configuration's fault and is tried
//     again, and so is 5xx to MAIL FROM except 552, a letter that is too large.)
//   - No answer once the server has asked for the letter (a time-out, a lost connection, a stop, a crash): nobody can know. The outcome is unknown and the default policy "park"
//     leaves it to a person. With "retry" the letter is sent again under its same Message-ID, by which many receivers, but not all, drop the copy.
//
// Record runs exactly once: the row in letters, the message on email.sent, if any, and the completed key commit together. A crash after the letter and
// before that commit is an unknown outcome, too: the letter is there, its row is not.
//
// Not promised: that an accepted letter reaches its reader, and order between letters. A changed setting domain changes the Message-IDs of letters that are tried again.
package email
