package rabbitbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// channelCloseWithin bounds the wait for the broker's answer when nothing is to be waited for.
const channelCloseWithin = 2 * time.Second

// session is one channel with one consumer. Its context is the parent of its messages' contexts and ends with it.
type session struct {
	s          *subscriber
	id         string
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery

	ctx    context.Context
	cancel context.CancelCauseFunc

	slots    chan struct{} // one for each message in flight
	watchers sync.WaitGroup
	requests chan struct{} // closed when drain's request has ended: the channel takes one at a time
	line     *line         // of an ordered subscription
}

// open opens a channel, prepares the queue as the topology says, and consumes.
func (s *subscriber) open() (*session, error) {
	conn, _, err := s.b.consume.get(s.ctx)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("opening a channel: %w", err)
	}
	ss := &session{s: s, id: uuid.NewString(), ch: ch, slots: make(chan struct{}, s.sub.InFlight)}
	if s.sub.Ordered {
		ss.line = newLine()
	}
	ss.ctx, ss.cancel = context.WithCancelCause(context.Background())
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ss.consume(); err != nil {
		ss.cancel(err)
		_ = ch.Close()
		return nil, err
	}
	s.b.work.Go(func() {
		cause := error(amqp.ErrClosed)
		if err := <-lost; err != nil {
			cause = err
		}
		ss.cancel(fmt.Errorf("channel of queue %q: %w", s.queue, cause))
	})
	return ss, nil
}

func (ss *session) consume() error {
	s := ss.s
	if err := s.b.cfg.prepareQueue(ss.ch, s.sub); err != nil {
		return err
	}
	queue, err := ss.ch.QueueDeclarePassive(s.queue, true, false, false, false, nil)
	if err != nil {
		return topologyError(err, fmt.Sprintf("queue %q of topic %s", s.queue, s.sub.Topic))
	}
	s.backlog.begin(queue.Messages)
	prefetch := s.b.cfg.Prefetch
	if prefetch == 0 {
		prefetch = s.sub.InFlight
	}
	if err := ss.ch.Qos(prefetch, 0, false); err != nil {
		return fmt.Errorf("setting the prefetch of queue %q: %w", s.queue, err)
	}
	ss.deliveries, err = ss.ch.Consume(s.queue, ss.id, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consuming queue %q: %w", s.queue, err)
	}
	return nil
}

// run hands over messages until the session is lost, whose cause it returns, or the subscriber stops.
func (ss *session) run() error {
	defer ss.close()
	if ss.line != nil {
		return ss.runOrdered()
	}
	for {
		select {
		case <-ss.s.draining:
			return ss.drain(nil)
		case <-ss.ctx.Done():
			return context.Cause(ss.ctx)
		case d, open := <-ss.deliveries:
			if !open {
				return ss.cancelled()
			}
			if !ss.hand(&d) {
				select {
				case <-ss.s.draining:
					return ss.drain(&d)
				default:
					return context.Cause(ss.ctx)
				}
			}
		}
	}
}

// cancelled says why deliveries ended: the channel closed, or the broker cancelled the consumer alone because its queue went away.
func (ss *session) cancelled() error {
	if ss.ch.IsClosed() {
		<-ss.ctx.Done()
		return context.Cause(ss.ctx)
	}
	return fmt.Errorf("the broker cancelled the consumer of queue %q: the queue was deleted or moved", ss.s.queue)
}

// hand gives one message to the handlers; false when the subscriber stops or the session is lost before.
func (ss *session) hand(d *amqp.Delivery) bool {
	s := ss.s
	select {
	case ss.slots <- struct{}{}:
	case <-s.draining:
		return false
	case <-ss.ctx.Done():
		return false
	}
	part := s.backlog.delivered()
	msg, info := decode(d, ss.id)
	ctx, cancel := context.WithCancel(envelope.WithDelivery(ss.ctx, info))
	msg.SetContext(ctx)
	if s.ctx.Err() == nil {
		select {
		case s.out <- msg:
			ss.watchers.Go(func() {
				defer cancel()
				ss.settle(d.DeliveryTag, msg, part)
			})
			return true
		case <-s.draining:
		case <-ss.ctx.Done():
		}
	}
	cancel()
	s.backlog.requeued(part)
	<-ss.slots
	return false
}

// settle waits for the message's settlement and sends it to the broker. An error of a closed channel is none:
// the broker delivers the message again.
func (ss *session) settle(tag uint64, msg *message.Message, part bool) {
	defer func() { <-ss.slots }()
	select {
	case <-msg.Acked():
		_ = ss.ch.Ack(tag, false)
		ss.s.nacks.forget(msg.UUID)
		ss.s.backlog.settled(part)
		return
	case <-msg.Nacked():
		ss.hold(msg.UUID)
		ss.s.backlog.expect(part)
		_ = ss.ch.Nack(tag, false, true)
		ss.s.backlog.gone()
	case <-ss.ctx.Done():
		ss.s.backlog.requeued(part)
	}
}

// hold waits out the delay of a nack.
func (ss *session) hold(uuid string) {
	delay, release := ss.s.nacks.hold(uuid)
	defer release()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ss.s.draining:
	case <-ss.ctx.Done():
	}
}

// drain gives back what was not handed over, pending among it, and waits until everything in flight is settled.
//
// With one active consumer the queue must not be given up before: the next consumer would get the messages behind
// those in flight. There the closing of the channel puts everything back, in its place.
func (ss *session) drain(pending *amqp.Delivery) error {
	given := make(chan struct{})
	ss.requests = given
	ss.s.b.work.Go(func() {
		defer close(given)
		if !ss.s.sub.Ordered {
			ss.giveBack(pending)
		}
	})
	for range cap(ss.slots) {
		select {
		case ss.slots <- struct{}{}:
		case <-ss.s.handBack:
			return nil
		case <-ss.ctx.Done():
			return fmt.Errorf("settled messages may come again: %w", context.Cause(ss.ctx))
		}
	}
	return nil
}

// giveBack cancels the consumer and requeues what it had sent ahead.
func (ss *session) giveBack(pending *amqp.Delivery) {
	if ss.ch.Cancel(ss.id, false) != nil {
		return // the channel is closed, which requeues everything
	}
	if pending != nil {
		_ = ss.ch.Nack(pending.DeliveryTag, false, true)
	}
	for d := range ss.deliveries {
		_ = ss.ch.Nack(d.DeliveryTag, false, true)
	}
}

// close ends the session: contexts of its messages end, and the broker requeues what is not settled. The broker answers the
// closing of the channel after everything sent before it, so acks have arrived when it returns.
func (ss *session) close() {
	closed := make(chan struct{})
	ss.s.b.work.Go(func() {
		defer close(closed)
		if ss.requests != nil {
			<-ss.requests
		}
		_ = ss.ch.Close()
	})
	select {
	case <-ss.s.handBack:
		ss.cancel(errStopping)
		timer := time.NewTimer(channelCloseWithin)
		defer timer.Stop()
		select {
		case <-closed:
		case <-timer.C: // the end of the connection does the same
		}
	case <-closed:
		ss.cancel(errors.New("rabbitmq: the session has ended"))
	}
	ss.watchers.Wait()
}
