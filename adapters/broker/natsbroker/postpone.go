package natsbroker

import (
	"slices"
	"time"
)

// postpone notes when a nacked message of an ordered subscription is due again, and returns how long that
// is, and what is offered now and must come behind it. None of its ordering key is due before one that stands before it in the stream.
func (s *subscriber) postpone(d *delivery) (time.Duration, *offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.nacks++
	d.waiting = true
	delay := nackDelay(d.nacks, slowestNackOrdered)
	d.due = time.Now().Add(delay)
	for _, other := range s.waitingWith(d) {
		if other.seq < d.seq {
			d.due = later(d.due, other.due)
		} else {
			other.due = later(other.due, d.due)
		}
	}
	if d.key == "" || s.offered == nil || s.offered.d == d || s.offered.d.key != d.key || s.offered.d.seq < d.seq {
		return delay, nil
	}
	signal(s.recall)
	return delay, s.offered
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// waitingWith are the other postponed messages of d's ordering key. The lock is held.
func (s *subscriber) waitingWith(d *delivery) []*delivery {
	var all []*delivery
	for _, other := range s.held {
		if other != d && other.waiting && other.key == d.key && d.key != "" {
			all = append(all, other)
		}
	}
	return all
}

// requeue hands a postponed message over again, behind those that stand before it. It returns how long it
// is to wait on where it is not due yet.
func (s *subscriber) requeue(d *delivery) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Asked under the lock: feed, which has its last look at the queue after the stop, may have ended.
	if s.IsStopping() {
		return time.Millisecond
	}
	if !d.waiting { // it went with another
		return 0
	}
	if wait := time.Until(d.due); wait > 0 {
		return wait
	}
	s.enqueue(d)
	for _, other := range s.waitingWith(d) {
		if other.seq < d.seq {
			s.enqueue(other)
		}
	}
	signal(s.wake)
	return 0
}

// unpostpone takes d out of those that wait; false where it went into the queue before.
func (s *subscriber) unpostpone(d *delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := d.waiting
	d.waiting = false
	return mine
}

// enqueue puts a postponed message into its place in the queue. The lock is held.
func (s *subscriber) enqueue(d *delivery) {
	d.waiting = false
	if s.held[d.seq] != d {
		return
	}
	d.handed, d.again = false, true
	s.handed--
	at, _ := slices.BinarySearchFunc(s.queue, d, compareSeq)
	s.queue = slices.Insert(s.queue, at, d)
}
