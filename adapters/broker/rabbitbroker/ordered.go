package rabbitbroker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// nackOrdered bounds the delay of a nack in an ordered subscription: what follows the message waits with it.
const nackOrdered = time.Second

// spot is one delivery of an ordered session. Its fields belong to the line's lock, but those set at its arrival.
type spot struct {
	amqp.Delivery
	key   string // its ordering key
	nacks int
	due   time.Time
	slot  bool // it has been handed over, and keeps its slot
	part  bool // of the backlog
}

// line is what waits to be handed over in an ordered session, in the queue's order. A nacked message stays here until it is due, because the
// broker would send it again behind those that it has sent already, and holds back those of its ordering key.
type line struct {
	changed chan struct{} // there may be something to hand over
	recall  chan struct{} // what is offered to handlers may have to wait

	mu      sync.Mutex
	waiting []*spot
	offered *spot
	over    chan struct{} // closed when offered is not offered any more
	closed  bool
}

func newLine() *line {
	return &line{changed: make(chan struct{}, 1), recall: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add takes a delivery in. The lock is held.
func (l *line) add(p *spot) {
	at, _ := slices.BinarySearchFunc(l.waiting, p, func(a, b *spot) int { return cmp.Compare(a.DeliveryTag, b.DeliveryTag) })
	l.waiting = slices.Insert(l.waiting, at, p)
}

func (l *line) arrive(d amqp.Delivery) {
	msg, _ := decode(&d, "")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(&spot{Delivery: d, key: msg.Metadata[envelope.OrderingKeyHeader]})
}

// take offers the first message that may be handed over, of those that have a slot where none is free, or says how long to wait for one; no
// time is zero.
func (l *line) take(now time.Time, free bool) (p *spot, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	blocked := map[string]bool{}
	for i, p := range l.waiting {
		if left := p.due.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			blocked[p.key] = p.key != ""
			continue
		}
		if !p.slot && !free {
			blocked[p.key] = p.key != ""
		}
		if blocked[p.key] || !p.slot && !free {
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.offered, l.over = p, make(chan struct{})
		return p, 0
	}
	return nil, wait
}

// end ends the offer of p, which waits again where nobody took it.
func (l *line) end(p *spot, taken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !taken {
		l.add(p)
	}
	close(l.over)
	l.offered, l.over = nil, nil
}

// postpone lines a nacked message up again, and returns when the later one of its key is not offered any more, where one is. It reports
// false where the session ends: the broker has the message then.
func (l *line) postpone(p *spot) (later <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	p.nacks++
	p.due = time.Now().Add(jitter(min(nackFirst<<min(p.nacks-1, 10), nackOrdered)))
	l.add(p)
	signal(l.changed)
	if p.key != "" && l.offered != nil && l.offered.key == p.key && l.offered.DeliveryTag > p.DeliveryTag {
		signal(l.recall)
		later = l.over
	}
	return later, true
}

// close gives up what waits, and returns it.
func (l *line) close() []*spot {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	all := l.waiting
	l.waiting = nil
	return all
}

// runOrdered is run for an ordered subscription.
func (ss *session) runOrdered() error {
	defer ss.leaveLine()
	for {
		p, wait := ss.line.take(time.Now(), len(ss.slots) < cap(ss.slots))
		if p != nil {
			ss.offer(p)
			select {
			case <-ss.s.draining:
				ss.leaveLine()
				return ss.drain(nil)
			default:
			}
			if ss.ctx.Err() != nil {
				return context.Cause(ss.ctx)
			}
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ss.s.draining:
			ss.leaveLine()
			return ss.drain(nil)
		case <-ss.ctx.Done():
			return context.Cause(ss.ctx)
		case <-ss.line.changed:
		case <-due:
		case d, open := <-ss.deliveries:
			if !open {
				return ss.cancelled()
			}
			ss.line.arrive(d)
		}
	}
}

// leaveLine leaves what waits to the broker, which puts it back in its place when the channel closes. Safe to call twice.
func (ss *session) leaveLine() {
	for _, p := range ss.line.close() {
		if p.slot {
			ss.release(p)
		}
	}
}

// release gives back the slot of a message that the broker will send again.
func (ss *session) release(p *spot) {
	ss.s.backlog.requeued(p.part)
	<-ss.slots
	signal(ss.line.changed)
}

// offer gives one message to the handlers, unless something must come first meanwhile, the subscriber stops or the session is lost.
func (ss *session) offer(p *spot) {
	s := ss.s
	taken := false
	defer func() { ss.line.end(p, taken) }()
	if !p.slot {
		ss.slots <- struct{}{} // one is free, and nobody else takes any before a drain
		p.slot, p.part = true, s.backlog.delivered()
		defer func() {
			if !taken {
				p.slot = false
				ss.release(p)
			}
		}()
	}
	msg, info := decode(&p.Delivery, ss.id)
	info.Redelivered = info.Redelivered || p.nacks > 0
	ctx, cancel := context.WithCancel(envelope.WithDelivery(ss.ctx, info))
	msg.SetContext(ctx)
	if s.ctx.Err() == nil {
		select {
		case s.out <- msg:
			taken = true
			ss.watchers.Go(func() {
				defer cancel()
				ss.settleOrdered(p, msg)
			})
			return
		case <-ss.line.recall:
		case <-s.draining:
		case <-ss.ctx.Done():
		}
	}
	cancel()
}

// settleOrdered waits for the message's settlement; the caller then ends its context.
func (ss *session) settleOrdered(p *spot, msg *message.Message) {
	select {
	case <-msg.Acked():
		_ = ss.ch.Ack(p.DeliveryTag, false)
		ss.s.backlog.settled(p.part)
		<-ss.slots
		signal(ss.line.changed)
		return
	case <-msg.Nacked():
		later, ok := ss.line.postpone(p)
		if ok {
			if later != nil {
				<-later
			}
			return
		}
	case <-ss.ctx.Done():
	}
	ss.release(p)
}
