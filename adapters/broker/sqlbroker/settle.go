package sqlbroker

import (
	"context"
	"log/slog"
	"time"
)

const settleTimeout = 10 * time.Second

// flush brings verdicts to the server, many at once, until noMore ends. What cannot be brought there before settling ends or the holding
// is lost is given up: it is delivered again.
func (s *subscriber) flush(settling, noMore context.Context, h *holding) {
	for {
		select {
		case <-s.settled:
		case <-noMore.Done():
			s.finish(s.takeVerdicts())
			return
		}
		s.gather(h)
		if ds := s.takeVerdicts(); len(ds) > 0 {
			s.bring(settling, h, ds)
			s.finish(ds)
		}
	}
}

// gather waits a moment for more verdicts where more messages are being handled.
func (s *subscriber) gather(h *holding) {
	patience := time.After(coalesce)
	for {
		s.mu.Lock()
		have, held := len(s.verdicts), len(s.held)
		s.mu.Unlock()
		if have >= min(held, max(s.sub.InFlight/4, 1)) {
			return
		}
		select {
		case <-s.settled:
		case <-patience:
			return
		case <-h.lost:
			return
		}
	}
}

func (s *subscriber) takeVerdicts() []*delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	ds := s.verdicts
	s.verdicts = nil
	return ds
}

// bring applies verdicts at the server. A settlement whose outcome is not known is sent again: it only touches what is still ours.
func (s *subscriber) bring(settling context.Context, h *holding, ds []*delivery) {
	batch := s.settlements(h, ds)
	pause := retryFirst
	for {
		ctx, cancel := context.WithTimeout(settling, settleTimeout)
		err := s.b.server.settle(ctx, h.queue, h.consumer, batch)
		cancel()
		if err == nil {
			return
		}
		s.log.Debug("sql settlement failed", slog.Any("err", err))
		select {
		case <-time.After(jitter(pause)):
			pause = min(2*pause, retryMost)
			continue
		case <-h.lost:
		case <-settling.Done():
			h.lose() // it is still a consumer with messages: it must not leave in order
		}
		s.log.Warn("sql settlements did not reach the server; the messages will be delivered again", slog.Int("count", len(ds)), slog.Any("err", err))
		return
	}
}

func (s *subscriber) settlements(h *holding, ds []*delivery) settlements {
	var batch settlements
	for _, d := range ds {
		if d.holder != h {
			continue // of a former holding
		}
		switch d.verdict {
		case ack:
			batch.acked = append(batch.acked, d.offset)
		case nack:
			batch.nacked = append(batch.nacked, postponed{d.offset, nackDelay(d.count, slowestNack)})
		case handBack:
			batch.nacked = append(batch.nacked, postponed{d.offset, 0})
		case untouched:
			batch.untouched = append(batch.untouched, d.offset)
		}
	}
	return batch
}

const (
	backlogAtFirst = 20 * time.Millisecond
	backlogAtMost  = 500 * time.Millisecond
)

// watchBacklog calls CatchUp when what stood in the queue at Subscribe is settled, by whichever replica.
func (s *subscriber) watchBacklog(ctx context.Context, h *holding) {
	pause := backlogAtFirst
	for {
		began := time.Now()
		done, err := s.seeBacklog(ctx, h)
		if done || ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Debug("sql backlog could not be read", slog.Any("err", err))
		}
		if sleep(ctx, max(pause, 10*time.Since(began))) != nil {
			return
		}
		pause = min(2*pause, backlogAtMost)
	}
}

func (s *subscriber) seeBacklog(ctx context.Context, h *holding) (done bool, err error) {
	select {
	case <-s.CaughtUp():
		return true, nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if !s.marked { // only one holding at a time is here
		last, any, err := s.b.server.last(ctx, h.queue)
		if err != nil {
			return false, err
		}
		s.marked, s.mark = true, last
		if !any {
			s.CatchUp()
			return true, nil
		}
	}
	if s.holdsUpTo(s.mark) {
		return false, nil
	}
	done, err = s.b.server.settledUpTo(ctx, h.queue, s.mark)
	if done && err == nil {
		s.CatchUp()
	}
	return done, err
}

// holdsUpTo reports whether something of the backlog is in our hands; then there is no need to ask.
func (s *subscriber) holdsUpTo(offset int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for place := range s.held {
		if place <= offset {
			return true
		}
	}
	return false
}
