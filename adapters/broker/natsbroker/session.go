package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

var errConnectionChanged = errors.New("the connection was lost")

// consume holds one session after the other until the stop.
func (s *subscriber) consume(ctx context.Context) {
	failures := 0
	for !s.IsStopping() {
		began := time.Now()
		err := s.turn(ctx)
		if s.IsStopping() {
			return
		}
		s.SetProblem(fmt.Errorf("nats: %w", err))
		level := slog.LevelWarn
		if up, _ := s.b.link.state(); !up || errors.Is(err, errConnectionChanged) { // that is logged once for all
			level = slog.LevelDebug
		}
		s.logger.Log(ctx, level, "nats subscription is interrupted", slog.Any("err", err))
		if time.Since(began) > 10*time.Second {
			failures = 0
		}
		failures++
		select {
		case <-time.After(reconnectDelay(failures, 2*time.Second)):
		case <-s.Stopping():
		}
	}
}

// turn holds one session: from a connection, and for an ordered subscription the lease, to the loss of either.
func (s *subscriber) turn(ctx context.Context) error {
	if err := s.b.link.await(ctx); err != nil {
		return err
	}
	if s.order != nil {
		if err := s.holdLease(ctx); err != nil {
			return err
		}
	}
	up, change := s.b.link.state()
	if !up {
		return errConnectionChanged
	}
	consumer, err := s.open(ctx)
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	expiry := pullExpiry
	if s.order != nil {
		expiry = pullExpiryOrdered
	}
	p, err := newPull(s.b.link.nc, s.b.cfg.api(), info.Stream, info.Name, expiry, s.arrive)
	if err != nil {
		return err
	}
	defer p.close()
	p.bytes = s.b.pullBytes
	if s.order != nil {
		if err := s.resync(ctx, p, consumer, change); err != nil {
			return err
		}
	}
	s.SetProblem(nil)
	return s.pump(p, change)
}

// open finds or makes the consumer and reads where it stands.
func (s *subscriber) open(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := s.b.link.during(ctx, 2*requestTimeout)
	defer cancel()
	consumer, err := s.b.topology.consumer(ctx, s.sub)
	if err != nil {
		return nil, err
	}
	info := consumer.CachedInfo()
	stream, err := s.b.link.js.Stream(ctx, info.Stream)
	if err != nil {
		return nil, fmt.Errorf("reading stream %s: %w", info.Stream, err)
	}
	// The stream's birth tells it from one of the same name whose numbers began anew.
	identity := fmt.Sprintf("%s/%d", info.Stream, stream.CachedInfo().Created.UnixMilli())
	if err := s.openMark(identity, info.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions++
	s.session = fmt.Sprintf("%s/%d", s.b.link.name(), s.sessions)
	s.identity = identity
	if info.Config.AckWait > 0 {
		s.ackWait = info.Config.AckWait
	}
	if s.mark != nil {
		// Read before anything is asked for: what comes up to here was handed over before, by whichever replica.
		s.marked = s.mark.value()
	}
	s.dropForgotten(info.Delivered.Stream)
	return consumer, nil
}

// openMark opens the memory of what was handed over, for a server that may forget it.
func (s *subscriber) openMark(identity, durable string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.b.marks == nil || s.mark != nil && s.identity == identity {
		return nil
	}
	if s.mark != nil {
		s.mark.close()
		s.mark = nil
	}
	m, err := s.b.marks(identity, durable)
	if err != nil {
		return fmt.Errorf("opening the consumer's mark: %w", err)
	}
	s.mark = m
	return nil
}

// dropForgotten ends the settlement of deliveries that a restarted server does not remember: it ignores them, and
// delivers the messages again. The lock is held.
func (s *subscriber) dropForgotten(delivered uint64) {
	for seq, d := range s.held {
		if seq > delivered && d.settling {
			d.take()
		}
	}
}

// pump asks for as many messages as there are free slots, until something ends the session.
func (s *subscriber) pump(p *pull, change <-chan struct{}) error {
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	for {
		if n := s.wanted(p); n > 0 {
			if err := p.ask(n, false); err != nil {
				return err
			}
		}
		select {
		case <-s.freed:
		case <-p.changed:
		case err := <-p.failed:
			return err
		case <-watch.C:
			if p.silent() {
				return errPullSilent
			}
			if s.gapSeen() {
				return errGap
			}
		case <-s.leaseLost():
			return errLeaseLost
		case <-change:
			return errConnectionChanged
		case <-s.Stopping():
			return nil
		}
		if s.gapSeen() {
			return errGap
		}
	}
}

// wanted is how many messages to ask for: the free slots, but not in crumbs.
func (s *subscriber) wanted(p *pull) int {
	s.mu.Lock()
	held := len(s.held)
	s.mu.Unlock()
	outstanding := p.outstanding()
	free := s.sub.InFlight - held - outstanding
	if outstanding > 0 && free < max(1, s.sub.InFlight/4) {
		return 0
	}
	return free
}

func (s *subscriber) closeMark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mark != nil {
		s.mark.close()
		s.mark = nil
	}
}
