package outbox

import "errors"

// ErrUnpublishable marks an error of a Publisher that no retry mends: the broker's size
// limit, a malformed name. The relay sets such a record aside at once.
var ErrUnpublishable = errors.New("outbox: message can never be published")

// ErrUnroutable marks an error of a Publisher: the broker took the message but had nowhere to put
// it, so it is not done. The relay tries again with backoff and never counts it as published.
var ErrUnroutable = errors.New("outbox: no queue or stream takes this message")
