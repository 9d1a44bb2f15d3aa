package rabbitbroker

import "sync"

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
	b.expect(part)
	b.gone()
}

// expect counts a delivery that is about to be sent back: it may come again before the sender goes on.
func (b *backlog) expect(part bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if part {
		b.open++
	}
}

// gone counts a delivery that was sent back.
func (b *backlog) gone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
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
