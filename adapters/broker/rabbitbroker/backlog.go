package rabbitbroker

import (
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const backlogPoll = time.Second

// backlog tells when what stood in the queue at Subscribe is settled: when as many deliveries as stood there, in the
// order in which they came, are acked here; or when the queue is seen empty while nothing is in flight here.
type backlog struct {
	caught chan struct{}

	mu       sync.Mutex
	begun    bool
	closed   bool
	open     int    // deliveries of the backlog that are still to come
	left     int    // messages of the backlog that are not acked
	inFlight int    // of all messages
	total    uint64 // deliveries so far
}

func newBacklog() *backlog { return &backlog{caught: make(chan struct{})} }

// begin takes the queue's length; later calls change nothing.
func (b *backlog) begin(messages int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.begun {
		return
	}
	b.begun, b.open, b.left = true, messages, messages
	b.finish()
}

// delivered counts a delivery and returns whether it belongs to the backlog.
func (b *backlog) delivered() (part bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight++
	b.total++
	if b.open == 0 {
		return false
	}
	b.open--
	return true
}

// settled counts an ack.
func (b *backlog) settled(part bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	if part {
		b.left--
		b.finish()
	}
}

// requeued counts a delivery that will come again.
func (b *backlog) requeued(part bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	if part {
		b.open++
	}
}

func (b *backlog) finish() {
	if b.begun && b.left == 0 && !b.closed {
		b.closed = true
		close(b.caught)
	}
}

// idle returns whether nothing is in flight here, and how many deliveries there were.
func (b *backlog) idle() (bool, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight == 0, b.total
}

func (b *backlog) empty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = 0
	b.finish()
}

// watchBacklog looks, until the backlog is settled, whether other replicas settled it. A message on its way from the broker is
// in no count, so the queue must be seen empty twice without a delivery in between.
func (s *subscriber) watchBacklog() {
	ticker := time.NewTicker(backlogPoll)
	defer ticker.Stop()
	seen, before := false, uint64(0)
	for {
		select {
		case <-ticker.C:
		case <-s.backlog.caught:
			return
		case <-s.ctx.Done():
			return
		}
		idle, total := s.backlog.idle()
		empty := idle && s.Consuming() == nil && s.queueEmpty()
		if empty && seen && total == before {
			s.backlog.empty()
			return
		}
		seen, before = empty, total
	}
}

func (s *subscriber) queueEmpty() bool {
	conn, _, err := s.b.consume.get(s.ctx)
	if err != nil {
		return false
	}
	var ch *amqp.Channel
	if ch, err = conn.Channel(); err != nil {
		return false
	}
	defer func() { _ = ch.Close() }()
	queue, err := ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	return err == nil && queue.Messages == 0
}
