package kafkabroker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// Delays of a nacked message.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// retryDelay grows with the number of deliveries so far.
func retryDelay(deliveries int) time.Duration {
	return min(lastRetry, firstRetry<<min(deliveries-1, 10))
}

// claim hands over the records of one partition, for one assignment.
type claim struct {
	g       *generation
	session string
	w       *window
	held    int           // slots; guarded by slots.mu
	wake    chan struct{} // something may be upcoming
	quiet   chan struct{} // a message was settled
	gone    chan struct{} // closed when late settlements are nobody's business any more
	waits   sync.WaitGroup

	offering  sync.Mutex
	offered   *entry        // what is offered to the handlers now
	offerOver chan struct{} // closed when it is not any more
}

func newClaim(g *generation, partition int32, w *window) *claim {
	return &claim{
		g:       g,
		session: fmt.Sprintf("%d/%s/%d", g.id, g.s.physical, partition),
		w:       w,
		wake:    make(chan struct{}, 1),
		quiet:   make(chan struct{}, 1),
		gone:    make(chan struct{}),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run hands records over until the assignment ends or the subscriber drains, and returns when the assignment has ended and
// running handlers had their time.
func (c *claim) run(messages <-chan *sarama.ConsumerMessage) {
	exhausted := false
	if c.g.enter() {
		exhausted = c.handOver(messages)
		c.g.leave()
	}
	if !exhausted {
		<-c.g.ended
	}
	c.settle()
	c.close()
}

// handOver ends when the assignment or the subscriber stops. It reports whether the library gave up on the partition before: to
// return from the claim then makes it join the group anew.
func (c *claim) handOver(messages <-chan *sarama.ConsumerMessage) (exhausted bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !c.stopped() {
		e, wait := c.w.upcoming(time.Now())
		if e != nil {
			c.deliver(e)
			continue
		}
		if wait == 0 {
			wait = time.Hour
		}
		timer.Reset(wait)
		source := messages
		if !c.w.wantsMore() {
			source = nil
			if c.w.urgent() {
				signal(c.g.commitNow)
			}
		}
		select {
		case record, open := <-source:
			if !open {
				return true
			}
			c.w.pull(record)
		case <-c.wake:
		case <-timer.C:
		case <-c.g.stop:
		}
	}
	return false
}

func (c *claim) stopped() bool {
	select {
	case <-c.g.stop:
		return true
	default:
		return false
	}
}

// deliver hands e over once a slot is free, unless something else comes first meanwhile or everything stops.
func (c *claim) deliver(e *entry) {
	slot := c.g.s.slots.request(&c.held)
	if !c.await(slot.granted, e) {
		c.g.s.slots.withdraw(slot)
		return
	}
	for {
		handed, again := c.offer(e)
		if handed {
			return
		}
		if !again {
			break
		}
	}
	c.g.s.slots.withdraw(slot)
}

// offer offers e to the handlers. It reports whether one took it, and else whether to look again what comes next.
func (c *claim) offer(e *entry) (handed, again bool) {
	over := make(chan struct{})
	c.offering.Lock()
	c.offered, c.offerOver = e, over
	c.offering.Unlock()
	defer func() {
		c.offering.Lock()
		defer c.offering.Unlock()
		c.offered, c.offerOver = nil, nil
		close(over)
	}()
	if !c.w.isUpcoming(e, time.Now()) { // a nack that came before saw no offer
		return false, false
	}
	msg, h := c.message(e)
	select {
	case c.g.s.out <- msg:
		c.w.handed(e)
		c.waits.Go(func() { c.watch(e, msg) })
		return true, false
	case <-c.wake:
		again = true
	case <-c.g.stop:
	}
	c.w.takeBack(h)
	return false, again
}

// offeredBehind is closed when a later record of e's key is not offered any more; nil where none is.
func (c *claim) offeredBehind(e *entry) <-chan struct{} {
	c.offering.Lock()
	defer c.offering.Unlock()
	if c.offered == nil || laneOf(c.offered.record) != laneOf(e.record) || c.offered.record.Offset <= e.record.Offset {
		return nil
	}
	return c.offerOver
}

// await waits for ready. It reports false when e is not what comes next any more, or everything stops.
func (c *claim) await(ready <-chan struct{}, e *entry) bool {
	for {
		select {
		case <-ready:
			return c.w.isUpcoming(e, time.Now())
		case <-c.g.stop:
			return false
		case <-c.wake:
			if !c.w.isUpcoming(e, time.Now()) {
				return false
			}
		}
	}
}

// message makes the message of one delivery of e, counted as handed over.
func (c *claim) message(e *entry) (*message.Message, handing) {
	ctx, end := context.WithCancelCause(context.Background())
	h, redelivered := c.w.handOver(e, end)
	msg, delivery := decode(e.record, c.session)
	delivery.Redelivered = redelivered
	msg.SetContext(envelope.WithDelivery(ctx, delivery))
	return msg, h
}

// watch waits for the settlement of one delivery.
func (c *claim) watch(e *entry, msg *message.Message) {
	select {
	case <-msg.Acked():
		counted, frees := c.w.ack(e)
		c.settled(counted, frees)
	case <-msg.Nacked():
		counted, end := c.w.nack(e, retryDelay, time.Now())
		later := c.offeredBehind(e)
		c.settled(counted, counted)
		if !counted {
			return
		}
		if later != nil { // its context ends when nothing that must come behind it is offered any more
			<-later
		}
		end()
	case <-c.gone:
	}
}

func (c *claim) settled(counted, wake bool) {
	if !counted { // close has given back the slot
		return
	}
	c.g.s.slots.release(&c.held)
	if wake {
		signal(c.wake)
	}
	if c.stopped() || c.w.urgent() {
		signal(c.g.commitNow)
	}
	signal(c.quiet)
	c.g.checkSettled()
}

// settle gives running handlers their time to finish.
func (c *claim) settle() {
	timeout := time.NewTimer(c.g.s.b.conf.SettleTimeout)
	defer timeout.Stop()
	for c.w.busy() {
		select {
		case <-c.quiet:
		case <-timeout.C:
			return
		case <-c.g.abandoned:
			return
		}
	}
}

// close takes away what is still in flight. Safe to call twice.
func (c *claim) close() point {
	taken, last := c.w.close()
	for range taken {
		c.g.s.slots.release(&c.held)
	}
	return last
}

// end waits for the watchers; nothing settles afterwards.
func (c *claim) end() {
	c.w.forget()
	close(c.gone)
	c.waits.Wait()
}
