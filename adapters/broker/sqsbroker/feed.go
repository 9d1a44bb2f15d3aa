package sqsbroker

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// feed hands over what arrives, in its order, until no more can arrive. Of a message group one message is in flight at a time: the
// service gives out several at once, and the next one must not begin before it is known that the one before it is not handed back.
func (s *subscriber) feed() {
	for {
		d, msg := s.next()
		if d == nil {
			return
		}
		select {
		case s.out <- msg:
			s.settlers.Go(func() { s.await(d, msg) })
		case <-d.taken:
		case <-s.Stopping():
			s.submit(d, handBack)
		}
	}
}

// next waits for a message to hand over; what is there at a stop is handed back. It returns nil when there will be none.
func (s *subscriber) next() (*delivery, *message.Message) {
	for {
		if d, msg := s.pop(); d != nil {
			return d, msg
		}
		select {
		case <-s.queued:
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

// pop takes the first message whose group has none in flight.
func (s *subscriber) pop() (*delivery, *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.IsStopping() {
		return nil, nil
	}
	for i, d := range s.queue {
		if s.busy[d.group] != nil || !time.Now().Before(d.until) {
			continue
		}
		s.queue = slices.Delete(s.queue, i, i+1)
		s.busy[d.group] = d
		return d, d.message(s.sub.Topic, s.session)
	}
	return nil, nil
}

// returnQueue hands back what was not handed over.
func (s *subscriber) returnQueue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		d := s.queue[0]
		s.queue = s.queue[1:]
		s.decide(d, handBack)
	}
}

// await waits for the verdict on one message.
func (s *subscriber) await(d *delivery, msg *message.Message) {
	select {
	case <-msg.Acked():
		s.submit(d, ack)
	case <-msg.Nacked():
		s.submit(d, nack)
	case <-s.Abandoned():
		s.submit(d, handBack)
	case <-d.taken:
	}
}

// submit leaves a verdict to be brought to the service.
func (s *subscriber) submit(d *delivery, v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decide(d, v)
}

// decide is submit with the lock held. What was received behind a message that is handed back is handed back, too: the service
// keeps the group from everybody until all of it is there again.
func (s *subscriber) decide(d *delivery, v verdict) {
	if _, held := s.held[d]; !held || d.verdict != undecided {
		return
	}
	if v == nack && s.IsStopping() {
		v = handBack
	}
	d.verdict = v
	s.verdicts = append(s.verdicts, d)
	signal(s.settled)
	if v == ack {
		s.release(d)
		return
	}
	var behind []*delivery
	s.queue = slices.DeleteFunc(s.queue, func(other *delivery) bool {
		if other.group != d.group {
			return false
		}
		behind = append(behind, other)
		return true
	})
	for _, other := range behind {
		s.decide(other, handBack)
	}
}

// release lets the next message of the group be handed over. The lock is held.
func (s *subscriber) release(d *delivery) {
	if s.busy[d.group] == d {
		delete(s.busy, d.group)
		signal(s.queued)
	}
}

// takeAway ends deliveries that are not ours any more, or not for long enough.
func (s *subscriber) takeAway(ds ...*delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		s.queue = slices.DeleteFunc(s.queue, func(other *delivery) bool { return other == d })
		s.verdicts = slices.DeleteFunc(s.verdicts, func(other *delivery) bool { return other == d })
		d.take()
		s.end(d)
	}
}

// finish ends deliveries: their contexts, their places.
func (s *subscriber) finish(ds []*delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range ds {
		s.end(d)
	}
}

// end is finish for one, with the lock held.
func (s *subscriber) end(d *delivery) {
	delete(s.held, d)
	s.release(d)
	if d.cancel != nil {
		d.cancel()
	}
	signal(s.freed)
}
