package sqlbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	askTimeout   = 30 * time.Second
	standByWatch = 300 * time.Millisecond
	sweepEvery   = 100 * time.Millisecond
	sweepMost    = 10 * time.Second
	coalesce     = 3 * time.Millisecond
	pollFirst    = 5 * time.Millisecond
	retryFirst   = 50 * time.Millisecond
	retryMost    = 2 * time.Second
)

var errLost = errors.New("another replica took over what was in flight, or the database did not answer in time")

// holding is one time in which this subscriber is known to the server as a consumer, and what it claims is its own.
type holding struct {
	name     string
	queue    int64
	consumer int64
	lost     chan struct{} // closed when what is held may be another's
	loseOnce sync.Once
	untidy   bool // a claim's answer was lost; only who claims reads it
}

func (h *holding) lose() { h.loseOnce.Do(func() { close(h.lost) }) }

func (h *holding) isLost() bool {
	select {
	case <-h.lost:
		return true
	default:
		return false
	}
}

// consume has one holding after the other until the stop.
func (s *subscriber) consume(asking, settling context.Context) {
	pause := retryFirst
	for asking.Err() == nil {
		began := time.Now()
		err := s.hold(asking, settling)
		if asking.Err() != nil {
			return
		}
		s.SetProblem(fmt.Errorf("sql: %w", err))
		s.log.Warn("sql subscription is interrupted", slog.Any("err", err))
		if time.Since(began) > 10*time.Second {
			pause = retryFirst
		}
		if sleep(asking, jitter(pause)) != nil {
			return
		}
		pause = min(2*pause, retryMost)
	}
}

// hold is one holding, from joining to leaving or its loss.
func (s *subscriber) hold(asking, settling context.Context) error {
	h, joined, err := s.join(asking)
	if err != nil {
		return err
	}
	var helpers sync.WaitGroup
	ctx, cancel := context.WithCancel(settling) // for what lasts as long as the holding
	flushing, noMore := context.WithCancel(context.Background())
	helpers.Go(func() { s.keepAlive(ctx, h, joined) })
	helpers.Go(func() { s.flush(settling, flushing, h) })
	helpers.Go(func() { s.watchBacklog(ctx, h) })

	until, stopAsking := context.WithCancel(asking)
	owning, disown := context.WithCancel(settling) // a stop does not break off a claim, whose outcome would not be known
	helpers.Go(func() {
		select {
		case <-h.lost:
			disown()
		case <-until.Done():
		}
		stopAsking()
	})
	err = s.become(until, h)
	if err == nil {
		err = s.claimAll(until, owning, h)
	}
	stopAsking()
	if h.isLost() {
		err = errLost
		s.takeAway(h)
	} else {
		signal(s.queued) // feed hands back what is not handed over
		s.awaitEmpty(h)
	}
	noMore()
	cancel()
	helpers.Wait()
	disown()
	if !h.isLost() && settling.Err() == nil {
		s.leave(settling, h)
	}
	return err
}

// leave unregisters. A consumer that cannot ends by itself.
func (s *subscriber) leave(ctx context.Context, h *holding) {
	ctx, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	err := s.tidy(ctx, h)
	if err == nil {
		err = s.b.server.leave(ctx, h.queue, h.consumer)
	}
	if err != nil {
		s.log.Debug("the consumer is still known to the server; it ends by itself", slog.Any("err", err))
	}
}

// tidy frees what a claim took whose answer was lost.
func (s *subscriber) tidy(ctx context.Context, h *holding) error {
	if !h.untidy {
		return nil
	}
	s.mu.Lock()
	have := make([]int64, 0, len(s.held))
	for offset := range s.held {
		have = append(have, offset)
	}
	s.mu.Unlock()
	err := s.b.server.tidy(ctx, h.queue, h.consumer, have)
	h.untidy = err != nil
	return err
}

// join finds the queue, makes it where it is missing and may be made, and registers.
func (s *subscriber) join(ctx context.Context) (*holding, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	queue, err := s.b.server.queue(ctx, s.sub.Topic, s.sub.Group)
	if errors.Is(err, errNoQueue) && s.b.cfg.Topology == Declare {
		if err = s.b.prepare(ctx, s.sub.Topic, []string{s.sub.Group}); err == nil {
			queue, err = s.b.server.queue(ctx, s.sub.Topic, s.sub.Group)
		}
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	sent := time.Now()
	consumer, err := s.b.server.join(ctx, queue, s.b.opts.ClientName, s.b.cfg.Visibility)
	if err != nil {
		return nil, time.Time{}, err
	}
	h := &holding{queue: queue, consumer: consumer, name: fmt.Sprintf("%s/%d", s.b.opts.ClientName, consumer), lost: make(chan struct{})}
	return h, sent, nil
}

// become returns when the consumer may claim: at once, or, ordered, when it is the only active one. Standing by is healthy.
func (s *subscriber) become(ctx context.Context, h *holding) error {
	for s.sub.Ordered {
		active, err := s.b.server.activate(ctx, h.queue, h.consumer)
		if active && err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.SetProblem(err)
		if sleep(ctx, standByWatch) != nil {
			return ctx.Err()
		}
	}
	return nil
}

// keepAlive tells the server that the consumer lives. Others count its end from when the server heard it; it counts a
// shorter time from when it was sent, so that it stops before another begins, and no two clocks are compared.
func (s *subscriber) keepAlive(ctx context.Context, h *holding, sent time.Time) {
	visibility := s.b.cfg.Visibility
	valid := sent.Add(visibility * 3 / 4)
	wait := visibility / 6
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		sent := time.Now()
		beating, cancel := context.WithDeadline(ctx, earlier(valid, sent.Add(visibility/3)))
		alive, err := s.b.server.beat(beating, h.queue, h.consumer, visibility)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && alive:
			valid, wait = sent.Add(visibility*3/4), visibility/6
			continue
		case err == nil || !time.Now().Before(valid):
			s.log.Warn("sql consumer was lost; what was in flight will be delivered again", slog.Any("err", err))
			h.lose()
			return
		}
		s.log.Debug("sql consumer could not tell that it lives", slog.Any("err", err))
		wait = min(visibility/20, time.Until(valid))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// claimAll claims messages as places become free, until ctx ends. The server's memory of settled messages before the first one that is left may be
// long (a transaction that stays open keeps it from forgetting them), so claims begin where the last one ended; and from time to time, the
// rarer the longer it takes, one begins at the beginning, for what was committed late, nacked or freed.
func (s *subscriber) claimAll(ctx, owning context.Context, h *holding) error {
	var next floor
	full, pause, poll := false, retryFirst, s.b.cfg.Poll
	for {
		free := s.room(ctx, full)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rows, err := s.claim(owning, h, free, full, &next)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, errNoTopic) {
				return err
			}
			s.SetProblem(fmt.Errorf("sql: %w", err))
			s.log.Debug("sql claim failed", slog.Any("err", err))
			full = false
			if sleep(ctx, jitter(pause)) != nil {
				return ctx.Err()
			}
			pause = min(2*pause, retryMost)
			continue
		}
		s.SetProblem(nil)
		pause = retryFirst
		s.arrive(h, rows)
		if full = len(rows) == free; full {
			continue
		}
		poll = min(2*poll, s.b.cfg.Poll)
		if len(rows) > 0 && !s.b.server.notifies() {
			poll = min(pollFirst, poll)
		}
		select {
		case <-s.wake:
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// floor is where claims begin.
type floor struct {
	from  int64
	sweep time.Time // when one begins at the beginning again
}

func (s *subscriber) claim(ctx context.Context, h *holding, limit int, crowded bool, next *floor) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := s.tidy(ctx, h); err != nil {
		return nil, err
	}
	began := time.Now()
	c := claim{queue: h.queue, consumer: h.consumer, topic: s.sub.Topic, limit: limit, from: next.from, crowded: crowded, wait: s.sub.Ordered}
	sweeping := s.sub.Ordered || !began.Before(next.sweep)
	if sweeping {
		c.from = 0
	}
	rows, err := s.b.server.claim(ctx, c)
	if err != nil {
		h.untidy = true
		return nil, err
	}
	if sweeping {
		next.sweep = time.Now().Add(min(max(sweepEvery, 10*time.Since(began)), sweepMost))
	}
	if len(rows) > 0 {
		next.from = rows[len(rows)-1].offset + 1
	}
	return rows, nil
}

// room waits for free places: where messages wait, a moment for more than a few. It returns how many there are.
func (s *subscriber) room(ctx context.Context, crowded bool) int {
	waited := false
	for {
		s.mu.Lock()
		free := s.sub.InFlight - len(s.held)
		s.mu.Unlock()
		if free > 0 && (!crowded || waited || free >= s.sub.InFlight/4) {
			return free
		}
		var patience <-chan time.Time
		if free > 0 {
			patience = time.After(coalesce)
		}
		select {
		case <-s.freed:
		case <-patience:
			waited = true
		case <-ctx.Done():
			return 0
		}
	}
}

// awaitEmpty returns when nothing is in our hands any more, or it was taken away.
func (s *subscriber) awaitEmpty(h *holding) {
	for {
		s.mu.Lock()
		left := len(s.held)
		s.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-s.freed:
		case <-h.lost:
			s.takeAway(h)
			return
		}
	}
}

// takeAway gives up everything in our hands.
func (s *subscriber) takeAway(h *holding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.queue {
		delete(s.held, d.offset)
	}
	s.queue = nil
	for _, d := range s.held {
		if d.holder == h {
			d.take()
		}
	}
	clear(s.held) // their places are free; what is in flight ends by itself
	signal(s.freed)
}
