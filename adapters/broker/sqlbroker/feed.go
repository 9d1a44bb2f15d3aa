package sqlbroker

import (
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	slowestNack = 5 * time.Second
	// slowestNackOrdered is shorter: what follows the message waits with it.
	slowestNackOrdered = time.Second
)

// arrive takes what was claimed.
func (s *subscriber) arrive(h *holding, rows []row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rows {
		d := newDelivery(r, h, s.sub.Ordered)
		s.held[r.offset] = d
		if r.missing {
			s.log.Warn("a message was deleted before it was delivered", slog.Int64("offset", r.offset))
			s.decide(d, ack)
			continue
		}
		if n := len(s.queue); n == 0 || s.queue[n-1].offset < d.offset {
			s.queue = append(s.queue, d)
		} else {
			s.enqueue(d)
		}
	}
	signal(s.queued)
}

// enqueue puts a delivery in its place. The lock is held.
func (s *subscriber) enqueue(d *delivery) {
	at, _ := slices.BinarySearchFunc(s.queue, d, compareOffset)
	s.queue = slices.Insert(s.queue, at, d)
}

// feed hands over what arrives, in its order, until no more can arrive.
func (s *subscriber) feed() {
	for {
		d, msg := s.next()
		if d == nil {
			return
		}
		s.offer(d, msg)
	}
}

// offer hands one message over, unless something comes first meanwhile.
func (s *subscriber) offer(d *delivery, msg *message.Message) {
	defer s.endOffer()
	select {
	case s.out <- msg:
		s.settlers.Go(func() { s.await(d, msg) })
	case <-s.recall:
		s.putBack(d)
	case <-d.taken:
		s.finish([]*delivery{d})
	case <-s.Stopping():
		s.submit(d, untouched)
	}
}

func (s *subscriber) endOffer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.offered.over)
	s.offered = nil
}

// next waits for a message to hand over; what is there at a stop is handed back. It returns nil when there will be none.
func (s *subscriber) next() (*delivery, *message.Message) {
	for {
		d, msg, wait := s.pop()
		if d != nil {
			return d, msg
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-s.queued:
		case <-due:
		case <-s.Stopping():
			s.returnQueue()
			select {
			case <-s.queued:
			case <-s.quiet:
				s.returnQueue()
				return nil, nil
			}
		}
	}
}

// pop takes the first message that may be handed over, or says how long to wait for one. A nacked message of an ordered
// subscription holds back those of its ordering key until it is due.
func (s *subscriber) pop() (*delivery, *message.Message, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.IsStopping() {
		return nil, nil, 0
	}
	var wait time.Duration
	var blocked map[string]string
	for i, d := range s.queue {
		if left := time.Until(d.due); !d.due.IsZero() && left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			if d.key != "" {
				blocked = set(blocked, d.key, "")
			}
			continue
		}
		if _, held := blocked[d.key]; held {
			continue
		}
		s.queue = slices.Delete(s.queue, i, i+1)
		s.offered = &offer{d: d, over: make(chan struct{})}
		return d, d.message(s.sub.Topic), 0
	}
	return nil, nil, wait
}

// putBack puts a message that nobody took yet in its place again: one of its ordering key that stands before it may have been nacked.
func (s *subscriber) putBack(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.cancel()
	if s.held[d.offset] == d {
		s.enqueue(d)
	}
}

// returnQueue hands back what was not handed over.
func (s *subscriber) returnQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.queue {
		if d.nacks > 0 {
			s.decide(d, handBack)
		} else {
			s.decide(d, untouched)
		}
	}
	s.queue = nil
}

// await waits for the verdict on one message.
func (s *subscriber) await(d *delivery, msg *message.Message) {
	select {
	case <-msg.Acked():
		s.submit(d, ack)
	case <-msg.Nacked():
		s.nacked(d)
	case <-s.Abandoned():
		s.submit(d, handBack)
	case <-d.taken:
		s.finish([]*delivery{d})
	}
}

// nacked gives the message back for a redelivery after a delay. Ordered, it stays in our hands meanwhile, so
// that nothing of its ordering key overtakes it; its context ends when nothing of that is offered any more.
func (s *subscriber) nacked(d *delivery) {
	if !s.sub.Ordered {
		s.submit(d, nack)
		return
	}
	end := d.cancel // of this hand-over: the next one has its own
	if later := s.postpone(d); later != nil {
		<-later.over
	}
	end()
}

// postpone queues a nacked message again. It returns what is offered now and must come behind it.
func (s *subscriber) postpone(d *delivery) *offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Asked under the lock: feed, which has its last look at the queue after the stop, may have ended.
	if s.IsStopping() || s.held[d.offset] != d {
		s.decide(d, handBack)
		return nil
	}
	d.nacks++
	d.due = time.Now().Add(nackDelay(d.nacks, slowestNackOrdered))
	s.enqueue(d)
	signal(s.queued)
	signal(s.recall)
	if s.offered == nil || d.key == "" || s.offered.d.key != d.key || s.offered.d.offset < d.offset {
		return nil
	}
	return s.offered
}

// submit leaves a verdict to be brought to the server.
func (s *subscriber) submit(d *delivery, v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide(d, v)
}

// decide is submit with the lock held.
func (s *subscriber) decide(d *delivery, v verdict) {
	if v == nack && s.IsStopping() {
		v = handBack
	}
	d.verdict = v
	s.verdicts = append(s.verdicts, d)
	signal(s.settled)
}

// finish ends deliveries: their contexts, their places.
func (s *subscriber) finish(ds []*delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		if s.held[d.offset] == d {
			delete(s.held, d.offset)
		}
		if d.cancel != nil {
			d.cancel()
		}
	}
	signal(s.freed)
}
