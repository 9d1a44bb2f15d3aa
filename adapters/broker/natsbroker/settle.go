package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// slowestNack bounds the delay of a redelivery after nacks.
	slowestNack = 5 * time.Second
	// slowestNackOrdered is shorter: what follows the message waits with it.
	slowestNackOrdered = time.Second
	// settleTimeout bounds one attempt to settle; the settlement is sent again then.
	settleTimeout = 2 * time.Second
)

// The bodies of settlements.
var (
	bodyAck      = []byte("+ACK")
	bodyNak      = []byte("-NAK")
	bodyProgress = []byte("+WPI")
)

var errTaken = errors.New("delivery was taken away")

// settle waits for the handler's verdict on one message and brings it to the server.
func (s *subscriber) settle(d *delivery, msg *message.Message) {
	select {
	case <-msg.Acked():
		s.finish(d, s.confirm(d, bodyAck, "ack"))
	case <-msg.Nacked():
		s.nacked(d)
	case <-s.Abandoned():
		s.handBack(d)
	case <-d.taken:
		s.finish(d, nil)
	}
}

// nacked gives the message back for a redelivery after a delay. Ordered, it stays in our hands meanwhile, so
// that nothing of its ordering key reaches another replica before it; its context ends when nothing of that is offered any more.
func (s *subscriber) nacked(d *delivery) {
	if s.IsStopping() {
		s.handBack(d)
		return
	}
	if s.order == nil {
		delay := nackDelay(int(min(d.count, 100)), slowestNack)
		s.finish(d, s.confirm(d, fmt.Appendf(nil, `-NAK {"delay": %d}`, delay.Nanoseconds()), "nack"))
		return
	}
	end := d.cancel // of this hand-over: the next one has its own
	wait, later := s.postpone(d)
	if later != nil {
		<-later.over
	}
	end()
	for ; wait > 0; wait = s.requeue(d) {
		select {
		case <-time.After(wait):
		case <-s.Stopping():
			if s.unpostpone(d) {
				s.handBack(d)
			}
			return
		case <-d.taken:
			if s.unpostpone(d) {
				s.finish(d, nil)
			}
			return
		}
	}
}

// handBack makes the message due at once, for any replica. It waits until nothing arrives here any more: the server would deliver
// the message again to what we have asked for, and nobody would settle that.
func (s *subscriber) handBack(d *delivery) {
	select {
	case <-s.quiet:
	case <-d.taken:
	}
	err := s.confirm(d, bodyNak, "hand-back")
	if err != nil && !errors.Is(err, errTaken) {
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
	}
	s.finish(d, err)
}

// finish ends a delivery: its context, its slot, our hold on it.
func (s *subscriber) finish(d *delivery, err error) {
	if err != nil && !errors.Is(err, errTaken) {
		s.logger.Warn("nats settlement did not reach the server; the message will be delivered again", slog.Any("err", err))
	}
	s.mu.Lock()
	if d.handed {
		d.handed = false
		s.handed--
	}
	if s.held[d.seq] == d {
		delete(s.held, d.seq)
	}
	s.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
	signal(s.freed)
	signal(s.wake)
}

// confirm sends a settlement until the server confirms it, the delivery is taken away, or its
// time is over: the server delivers the message again then.
func (s *subscriber) confirm(d *delivery, body []byte, what string) error {
	s.mu.Lock()
	d.settling = true
	limit := s.ackWait
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		err := s.request(ctx, d, body)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errTaken):
			return err
		case ctx.Err() != nil || s.b.link.nc.IsClosed():
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-d.taken:
			return errTaken
		case <-s.b.done: // the server is not asked for ever when the broker closes
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// request is one attempt to settle.
func (s *subscriber) request(ctx context.Context, d *delivery, body []byte) error {
	ctx, cancel := s.b.link.during(ctx, settleTimeout)
	defer cancel()
	s.mu.Lock()
	reply := d.reply
	s.mu.Unlock()
	select {
	case <-d.taken:
		return errTaken
	default:
	}
	_, err := s.b.link.nc.RequestWithContext(ctx, reply, body)
	return err
}

// keepAlive tells the server of every delivery in our hands that somebody works on it.
func (s *subscriber) keepAlive(ctx context.Context) {
	for {
		s.mu.Lock()
		every := s.ackWait / 3
		s.mu.Unlock()
		select {
		case <-time.After(every / 2):
			s.touch(every)
		case <-ctx.Done():
			return
		}
	}
}

func (s *subscriber) touch(every time.Duration) {
	if up, _ := s.b.link.state(); !up || !s.mayTouch() {
		return
	}
	now := time.Now()
	var replies []string
	s.mu.Lock()
	for _, d := range s.held {
		if !d.settling && now.Sub(d.touched) >= every {
			d.touched = now
			replies = append(replies, d.reply)
		}
	}
	s.mu.Unlock()
	for _, reply := range replies {
		if err := s.b.link.nc.Publish(reply, bodyProgress); err != nil {
			s.logger.Debug("nats keep-alive was not sent", slog.Any("err", err))
			return
		}
	}
}
