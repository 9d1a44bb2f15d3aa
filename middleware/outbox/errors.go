package outbox

import "errors"

// ErrUnpublishable marks an error of a Publisher that no retry mends: the broker's size
// limit, a malformed name. The relay sets such a record aside at once.
var ErrUnpublishable = errors.New("outbox: message can never be published")

// ErrUnroutable marks an error of a Publisher: the broker took the message but had nowhere to put
// it, so it is not done. The relay tries again with backoff and never counts it as published.
var ErrUnroutable = errors.New("outbox: no queue or stream takes this message")

// ErrUnavailable marks an error of a Publisher: the broker as a whole could not be reached, so the failure says
// nothing about the message. The relay slows down, tries again for ever and counts no attempt.
// Errors of the network (net.Error, io.EOF) and ends of a context count as this, also unmarked.
var ErrUnavailable = errors.New("outbox: broker unavailable")
