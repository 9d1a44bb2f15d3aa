package natsbroker

import (
	"github.com/nats-io/nats.go"
)

// arrive takes a message that the server delivered.
func (s *subscriber) arrive(m *nats.Msg) {
	a, err := arrivalOf(m)
	if err != nil {
		s.logger.Error("nats delivery is unreadable")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer signal(s.wake)
	d, again := s.held[a.seq]
	if again {
		// The keep-alive came too late, and the message is still in our hands: it is not handed over twice.
		d.reply, d.count, d.again = m.Reply, max(d.count, a.count), true
		s.passed(a)
		signal(s.freed)
		return
	}
	d = newDelivery(m, a)
	d.again = d.again || a.seq <= s.marked
	s.held[a.seq] = d
	if s.passed(a) {
		s.queue = append(s.queue, d)
	} else {
		s.order.withheld = append(s.order.withheld, d)
	}
}

// feed hands over what arrives, in its order, until no more can arrive.
func (s *subscriber) feed() {
	for {
		d := s.next()
		if d == nil {
			return
		}
		if s.isStopping() {
			s.settlers.Go(func() { s.handBack(d) })
			continue
		}
		s.handOver(d)
	}
}

// next waits for a message to hand over, or to hand back in a stop. It returns nil when there will be none.
func (s *subscriber) next() *delivery {
	for {
		if d := s.pop(); d != nil {
			return d
		}
		select {
		case <-s.wake:
		case <-s.stop:
			select {
			case <-s.wake:
			case <-s.quiet:
				return s.pop()
			}
		}
	}
}

func (s *subscriber) pop() *delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isStopping() && s.order != nil {
		s.queue = append(s.queue, s.order.withheld...)
		s.order.withheld = nil
	}
	if len(s.queue) == 0 || s.handed >= s.sub.InFlight && !s.isStopping() {
		return nil
	}
	d := s.queue[0]
	s.queue = s.queue[1:]
	d.handed = true
	s.handed++
	return d
}

func (s *subscriber) handOver(d *delivery) {
	s.mu.Lock()
	msg := d.message(s.b.name, s.session, s.identity)
	marker := s.mark
	s.mu.Unlock()
	if marker != nil {
		marker.raise(d.seq)
	}
	select {
	case s.out <- msg:
		s.settlers.Go(func() { s.settle(d, msg) })
	case <-d.taken:
		s.finish(d, nil)
	case <-s.stop:
		s.settlers.Go(func() { s.handBack(d) })
	}
}
