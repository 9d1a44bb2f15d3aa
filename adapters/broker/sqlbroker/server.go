package sqlbroker

import (
	"context"
	"time"
)

// server is all that the adapter needs of a database: the seam between what a broker is and how one database spells it. Each method is
// one unit of work, bounded by its context, and may be called again when its outcome is unknown. Safe for concurrent use.
type server interface {
	ping(ctx context.Context) error
	// keeps says whether what is committed survives a crash of the server's machine, and what weakens the promises, as the server was configured at
	// the last ping.
	keeps() (durable bool, caveats []string)
	// prepare makes, or verifies, the topic's table, and for each group its queue: from then on each message of
	// the topic, committed before or after, is in the queue until it is settled, whoever writes it.
	prepare(ctx context.Context, topic string, groups []string) error
	// queue returns the number of a group's queue, and errNoQueue where it is not declared.
	queue(ctx context.Context, topic, group string) (int64, error)

	// publish writes rows in their order and commits, or writes none of them.
	publish(ctx context.Context, topic string, rows []outgoing) error

	// join registers a consumer, which is alive until visibility has passed, or beat extends that.
	join(ctx context.Context, queue int64, name string, visibility time.Duration) (consumer int64, err error)
	// beat extends the consumer's life and frees what dead consumers of the queue held. It returns false when the consumer itself was found dead.
	beat(ctx context.Context, queue, consumer int64, visibility time.Duration) (alive bool, err error)
	// activate makes the consumer the queue's only active one, unless another one is alive.
	activate(ctx context.Context, queue, consumer int64) (bool, error)
	// leave unregisters a consumer that holds nothing.
	leave(ctx context.Context, queue, consumer int64) error

	// claim gives messages to the consumer, those that stand first in the topic first.
	claim(ctx context.Context, c claim) ([]row, error)
	// tidy frees what the consumer holds but has not: what a claim took whose answer was lost. It waits for such a claim's end.
	tidy(ctx context.Context, queue, consumer int64, has []int64) error
	// settle applies settlements of messages that the consumer holds; what it does not hold any more is passed over.
	settle(ctx context.Context, queue, consumer int64, s settlements) error

	// last returns the offset of the queue's last message that is not settled; false where there is none.
	last(ctx context.Context, queue int64) (offset int64, any bool, err error)
	// settledUpTo reports whether everything up to the offset is settled.
	settledUpTo(ctx context.Context, queue, offset int64) (bool, error)

	// clean deletes messages of the topic that are older than the retention and settled by every group.
	clean(ctx context.Context, topic string, retention time.Duration) (deleted int64, err error)

	// notify tells listeners that topics have messages.
	notify(ctx context.Context, topics []string) error
	// notifies reports whether notify tells anybody. Where it does not, polling is all there is.
	notifies() bool
	// listen calls ready when it hears, and heard for each topic that has messages, until its connection is lost or ctx ends.
	listen(ctx context.Context, ready func(), heard func(topic string)) error

	// classify marks an error that says nothing about the message, or that no retry mends, as package outbox asks.
	classify(err error) error
	close()
}

// outgoing is one message to write.
type outgoing struct {
	index    int // in the batch
	uuid     string
	payload  []byte
	metadata string // JSON
}

// claim asks for messages.
type claim struct {
	queue, consumer int64
	topic           string
	limit           int
	// from is the lowest offset to look at.
	from int64
	// crowded says that the last claim left messages behind.
	crowded bool
	// wait makes the claim wait for locked messages instead of passing them over.
	wait bool
}

// row is one message that was claimed.
type row struct {
	offset   int64
	count    int // deliveries, this one included
	missing  bool
	uuid     string
	payload  []byte
	metadata []byte // JSON, or nil
}

// settlements are applied together.
type settlements struct {
	acked  []int64
	nacked []postponed
	// untouched are handed back without having been delivered.
	untouched []int64
}

// postponed is a message that is to come again after a delay.
type postponed struct {
	offset int64
	delay  time.Duration
}
