package outbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

var errStopped = errors.New("the relay's time to stop is over")

// session is one Run of a relay: the dispatcher hands lanes to workers, one round at a time each.
type session struct {
	r     *Relay
	lanes *lanes

	// work is alive beyond the end of Run's context, so that a stop can finish what is being published.
	work context.Context
	kill context.CancelCauseFunc
	// background goroutines: lane keeper, status.
	background     sync.WaitGroup
	stopBackground context.CancelFunc

	// The rest belongs to the dispatcher.
	timing   map[int]*timing
	busy     int
	budget   int // records that may yet be read: Batch less those of the rounds that run
	finished chan result
	crashed  error
}

// timing is when a lane is worked again; it outlives the lane's tokens.
type timing struct {
	busy    bool
	again   bool // woken while busy
	next    time.Time
	served  time.Time
	outages int
}

// result is what a round says to the dispatcher.
type result struct {
	lane int
	// limit is what the round took from the budget.
	limit int
	// more: there may be records left that can go out at once.
	more bool
	// pause: the broker or the source is not there; waking does not help.
	pause bool
	// crash is the error of a fault point.
	crash error
}

func newSession(ctx context.Context, r *Relay) *session {
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{
		r: r, lanes: newLanes(r, work), work: work, kill: kill, stopBackground: stop,
		timing: map[int]*timing{}, budget: r.cfg.Batch, finished: make(chan result),
	}
	s.background.Go(func() { s.lanes.keep(background) })
	s.background.Go(func() { s.report(background) })
	return s
}

// close ends the session when no worker is left.
func (s *session) close() {
	s.kill(errStopped)
	s.stopBackground()
	s.background.Wait()
	s.lanes.end()
	if s.crashed != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.work), min(s.r.cfg.StopTimeout, 5*time.Second))
	defer cancel()
	if err := s.r.cfg.Source.ReleaseLanes(ctx, s.r.cfg.Owner); err != nil {
		s.r.cfg.Logger.Warn("outbox relay could not release its lanes; others take them when the lease is over",
			slog.Any("err", err))
	}
	s.r.cfg.Observer.lanes(0)
}

// dispatch starts rounds until ctx ends or a fault point fires, and returns when no worker is left.
func (s *session) dispatch(ctx context.Context) error {
	wake := s.r.cfg.Source.Wake()
	for ctx.Err() == nil && s.crashed == nil {
		timer := time.NewTimer(s.start(ctx.Done()))
		select {
		case <-ctx.Done():
		case <-wake:
			s.wake()
		case <-s.lanes.changed:
		case res := <-s.finished:
			s.settle(res)
		case <-timer.C:
		}
		timer.Stop()
	}
	s.drain()
	return s.crashed
}

// drain waits for the workers, for the stop timeout at most before it cuts them short.
func (s *session) drain() {
	if s.crashed != nil {
		s.kill(s.crashed)
	}
	timer := time.AfterFunc(s.r.cfg.StopTimeout, func() { s.kill(errStopped) })
	defer timer.Stop()
	for s.busy > 0 {
		s.settle(<-s.finished)
	}
}

// start hands lanes that are due to free workers, the longest unserved first, and returns how long
// nothing more is to be started.
func (s *session) start(stop <-chan struct{}) time.Duration {
	now := time.Now()
	wait := s.r.cfg.Poll
	due := slices.DeleteFunc(s.idle(), func(h *held) bool {
		left := s.timing[h.Number].next.Sub(now)
		if left > 0 {
			wait = min(wait, left)
		}
		return left > 0
	})
	for i, h := range due {
		workers := s.r.cfg.Workers - s.busy
		if workers == 0 || s.budget == 0 {
			break // a round that ends makes us look again
		}
		t := s.timing[h.Number]
		t.busy, t.again, t.served = true, false, now
		limit := share(s.budget, min(workers, len(due)-i))
		s.busy++
		s.budget -= limit
		go func() { s.finished <- s.r.round(s.work, stop, h, s.lanes, limit) }()
	}
	return wait
}

// share is a fair part of the budget for one of n rounds; at least one record.
func share(budget, n int) int { return (budget + n - 1) / n }

func (s *session) idle() []*held {
	all := s.lanes.usable()
	for _, h := range all {
		if s.timing[h.Number] == nil {
			s.timing[h.Number] = &timing{}
		}
	}
	all = slices.DeleteFunc(all, func(h *held) bool { return s.timing[h.Number].busy })
	slices.SortFunc(all, func(a, b *held) int {
		return s.timing[a.Number].served.Compare(s.timing[b.Number].served)
	})
	return all
}

func (s *session) wake() {
	for _, t := range s.timing {
		t.again = true
		if t.outages == 0 {
			t.next = time.Time{}
		}
	}
}

func (s *session) settle(res result) {
	s.busy--
	s.budget += res.limit
	t := s.timing[res.lane]
	t.busy = false
	switch {
	case res.crash != nil:
		if s.crashed == nil {
			s.crashed = res.crash
			s.kill(res.crash)
		}
	case res.pause:
		t.outages++
		t.next = time.Now().Add(s.outagePause(t.outages))
	default:
		t.outages = 0
		t.next = time.Time{}
		if !res.more && !t.again {
			t.next = time.Now().Add(s.r.cfg.Poll)
		}
	}
}

// outagePause doubles from the backoff's lower bound up to five seconds.
func (s *session) outagePause(outages int) time.Duration {
	most := min(outageBackoff, s.r.cfg.BackoffMax)
	return jitter(min(s.r.cfg.BackoffMin<<min(outages-1, 8), most))
}

// report tells the observer the outbox's state.
func (s *session) report(ctx context.Context) {
	if s.r.cfg.Observer.Status == nil {
		return
	}
	tick := time.NewTicker(s.r.cfg.StatusEvery)
	defer tick.Stop()
	for {
		call, cancel := context.WithTimeout(ctx, s.r.cfg.StatusEvery)
		status, err := s.r.cfg.Source.Status(call)
		cancel()
		if err == nil {
			s.r.cfg.Observer.status(status)
		} else if ctx.Err() == nil {
			s.r.cfg.Logger.Debug("outbox status cannot be read", slog.Any("err", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
