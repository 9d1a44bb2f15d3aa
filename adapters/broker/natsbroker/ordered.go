package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/adapters/internal/draining"
)

// errGap ends a session: the server delivered something that did not come here.
var errGap = errors.New("a delivery is missing in the sequence")

// sequencer keeps the order of one active consumer. The server numbers its deliveries without gaps. A gap
// says that a message was delivered, but not to us: it was lost on the way, or went to a former holder
// of the lease. Whatever came after it is withheld until that message has come again.
//
// Its fields belong to the subscriber's lock.
type sequencer struct {
	last       uint64 // consumer sequence of the last delivery
	fresh      uint64 // what the stream has after this sequence was never delivered before
	collecting bool
	collected  int  // deliveries since collecting began
	sawFresh   bool // so the server had no redelivery left that was due
	gap        bool
	withheld   []*delivery
}

// passed reports whether a delivery may be handed over in its turn. The lock is held.
func (s *subscriber) passed(a arrival) bool {
	q := s.order
	if q == nil {
		return true
	}
	next := a.consumer == q.last+1
	q.last = a.consumer
	if q.collecting {
		q.collected++
		q.sawFresh = q.sawFresh || a.count == 1 && a.seq > q.fresh
		return false
	}
	if !next {
		q.gap, q.collecting = true, true
		signal(s.freed)
	}
	return next
}

// gapSeen reports that the session is to end.
func (s *subscriber) gapSeen() bool {
	if s.order == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order.gap
}

// resync collects, before anything new is handed over, what was delivered before and not settled: by a former
// holder of the lease, or in a former session. The server hands out redeliveries before new messages, but only those
// that are due, and not in their order: so it waits until all are due, collects them, and sorts.
func (s *subscriber) resync(ctx context.Context, p *pull, consumer jetstream.Consumer, change <-chan struct{}) error {
	info := consumer.CachedInfo()
	clean := s.takeClean()
	s.mu.Lock()
	q := s.order
	q.collecting, q.collected, q.sawFresh, q.gap = true, 0, false, false
	q.last, q.fresh = info.Delivered.Consumer, info.Delivered.Stream
	s.mu.Unlock()
	if info.NumAckPending > 0 {
		if !clean {
			due, err := s.awaitDue(ctx, consumer, change)
			if err != nil {
				return err
			}
			info = due
		}
		missing, err := s.collect(p, info.NumAckPending, change)
		if err != nil {
			return err
		}
		// A clean hand-over queues everything at the server; a server that restarted since has lost that queue.
		if clean && missing > 0 {
			due, err := s.awaitDue(ctx, consumer, change)
			if err != nil {
				return err
			}
			if _, err := s.collect(p, due.NumAckPending, change); err != nil {
				return err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, q.withheld...)
	slices.SortFunc(s.queue, compareSeq)
	q.withheld, q.collecting = nil, false
	signal(s.wake)
	return nil
}

// awaitDue waits until every unsettled delivery that is not in our hands is due again, or settled.
func (s *subscriber) awaitDue(ctx context.Context, consumer jetstream.Consumer, change <-chan struct{}) (*jetstream.ConsumerInfo, error) {
	info := consumer.CachedInfo()
	wait := info.Config.AckWait + 500*time.Millisecond
	due, delivered := time.Now().Add(wait), uint64(0)
	for {
		asking, cancel := s.b.link.during(ctx, requestTimeout)
		now, err := consumer.Info(asking)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("reading consumer %s: %w", info.Name, err)
		}
		if now.NumAckPending == 0 {
			return s.standsAt(now), nil
		}
		if now.Delivered.Consumer != delivered && delivered != 0 {
			// A request that a former holder left behind took something; that is not due for another while.
			due = time.Now().Add(wait)
		}
		delivered = now.Delivered.Consumer
		if !time.Now().Before(due) {
			return s.standsAt(now), nil
		}
		select {
		case <-time.After(min(time.Until(due)+time.Millisecond, 250*time.Millisecond)):
		case <-change:
			return nil, errConnectionChanged
		case <-s.leaseLost():
			return nil, errLeaseLost
		case <-s.Stopping():
			return nil, draining.ErrStopping
		}
	}
}

func (s *subscriber) standsAt(info *jetstream.ConsumerInfo) *jetstream.ConsumerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order.last, s.order.fresh = info.Delivered.Consumer, info.Delivered.Stream
	return info
}

// collect takes the redeliveries that the server has ready, at most n. It returns how many of n did not come.
func (s *subscriber) collect(p *pull, n int, change <-chan struct{}) (missing int, err error) {
	const most = 64
	for {
		s.mu.Lock()
		left, done := n-s.order.collected, s.order.sawFresh
		s.mu.Unlock()
		if left <= 0 || done || p.exhausted() {
			return max(left, 0), nil
		}
		if err := p.ask(min(left, most), true); err != nil {
			return 0, err
		}
		if err := s.answered(p, change); err != nil {
			return 0, err
		}
	}
}

// answered waits until a request without waiting is answered in full.
func (s *subscriber) answered(p *pull, change <-chan struct{}) error {
	limit := time.After(requestTimeout)
	for p.outstanding() > 0 {
		select {
		case <-p.changed:
		case err := <-p.failed:
			return err
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			return errPullSilent
		case <-s.leaseLost():
			return errLeaseLost
		case <-change:
			return errConnectionChanged
		case <-s.Stopping():
			return draining.ErrStopping
		}
	}
	return nil
}

// takeAway gives up everything in our hands, because another replica holds the lease.
func (s *subscriber) takeAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq, d := range s.held {
		d.take()
		if !d.handed { // nobody waits for it
			delete(s.held, seq)
		}
	}
	s.queue, s.order.withheld = nil, nil
}
