package kafkabroker

import "sync"

// slots bounds the messages in flight over all partitions of a subscription. A free slot goes to the waiting partition that has the
// fewest, so a busy partition uses what others leave and takes nothing from them for long. Safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting []*slotRequest
}

// slotRequest is one partition's wait for a slot.
type slotRequest struct {
	held    *int // slots that the partition holds; guarded by slots.mu
	granted chan struct{}
}

func newSlots(n int) *slots { return &slots{free: n} }

// request asks for a slot for the partition that counts in held. The request must be granted or withdrawn.
func (s *slots) request(held *int) *slotRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &slotRequest{held: held, granted: make(chan struct{})}
	s.waiting = append(s.waiting, r)
	s.grant()
	return r
}

// withdraw gives up a request, or the slot that it got.
func (s *slots) withdraw(r *slotRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range s.waiting {
		if w == r {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return
		}
	}
	s.put(r.held)
}

// release gives back a slot that the partition holds.
func (s *slots) release(held *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(held)
}

func (s *slots) put(held *int) {
	*held--
	s.free++
	s.grant()
}

func (s *slots) grant() {
	for s.free > 0 && len(s.waiting) > 0 {
		least := 0
		for i, w := range s.waiting {
			if *w.held < *s.waiting[least].held {
				least = i
			}
		}
		r := s.waiting[least]
		s.waiting = append(s.waiting[:least], s.waiting[least+1:]...)
		*r.held++
		s.free--
		close(r.granted)
	}
}
