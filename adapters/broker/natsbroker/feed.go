package natsbroker

import (
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/middleware/envelope"
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
	if s.order != nil {
		d.key = decodeHeaders(m.Header).metadata[envelope.OrderingKeyHeader]
	}
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
		if s.IsStopping() {
			s.settlers.Go(func() { s.handBack(d) })
			s.endOffer()
			continue
		}
		s.handOver(d)
		s.endOffer()
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
		case <-s.Stopping():
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
	if s.IsStopping() && s.order != nil {
		s.queue = append(s.queue, s.order.withheld...)
		s.order.withheld = nil
	}
	if len(s.queue) == 0 || s.handed >= s.sub.InFlight && !s.IsStopping() {
		return nil
	}
	at := 0
	if !s.IsStopping() {
		if at = s.unblocked(); at < 0 {
			return nil
		}
	}
	d := s.queue[at]
	s.queue = slices.Delete(s.queue, at, at+1)
	d.handed = true
	s.handed++
	s.offered = &offer{d: d, over: make(chan struct{})}
	return d
}

// unblocked is the place of the first message in the queue that may be handed over: a nacked message of an ordered
// subscription that waits holds back those of its ordering key. It is -1 where there is none. The lock is held.
func (s *subscriber) unblocked() int {
	if s.order == nil {
		return 0
	}
	waiting := map[string]uint64{} // the lowest sequence of each key
	for _, d := range s.held {
		if first, any := waiting[d.key]; d.waiting && d.key != "" && (!any || d.seq < first) {
			waiting[d.key] = d.seq
		}
	}
	return slices.IndexFunc(s.queue, func(d *delivery) bool {
		first, any := waiting[d.key]
		return !any || d.seq < first
	})
}

// offer is a message that is offered to the handlers, until one took it or it was taken back.
type offer struct {
	d    *delivery
	over chan struct{}
}

func (s *subscriber) endOffer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.offered.over)
	s.offered = nil
}

// putBack puts a message that nobody took yet in its place again: one of its ordering key that stands before it was nacked.
func (s *subscriber) putBack(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.cancel()
	d.handed = false
	s.handed--
	select {
	case <-d.taken: // meanwhile
		if s.held[d.seq] == d {
			delete(s.held, d.seq)
		}
		return
	default:
	}
	at, _ := slices.BinarySearchFunc(s.queue, d, compareSeq)
	s.queue = slices.Insert(s.queue, at, d)
	signal(s.wake)
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
	case <-s.recall:
		s.putBack(d)
	case <-d.taken:
		s.finish(d, nil)
	case <-s.Stopping():
		s.settlers.Go(func() { s.handBack(d) })
	}
}
