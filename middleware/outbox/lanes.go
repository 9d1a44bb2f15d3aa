package outbox

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

var (
	errUncertain = errors.New("the lane's renewal is uncertain")
	errGivenUp   = errors.New("the lane is not held any more")
)

// held is a lane that this relay holds, as far as it can know. Its context ends when
// that is not certain any more: from then on nothing is published from it.
type held struct {
	Lane
	ctx    context.Context
	cancel context.CancelCauseFunc
	// expiry ends ctx some time before the lease ends in the store.
	expiry *time.Timer
}

// lanes keeps the relay's lanes leased. It is safe for concurrent use.
type lanes struct {
	r    *Relay
	work context.Context // parent of the lanes' contexts

	mu   sync.Mutex
	held map[int]*held

	// changed is signalled when a lane was added.
	changed chan struct{}
	// lost asks for an early renewal, because a lane turned out to be lost.
	lost chan struct{}
}

func newLanes(r *Relay, work context.Context) *lanes {
	return &lanes{r: r, work: work, held: map[int]*held{}, changed: make(chan struct{}, 1), lost: make(chan struct{}, 1)}
}

// keep acquires and renews until ctx ends.
func (l *lanes) keep(ctx context.Context) {
	lease := l.r.cfg.Lease
	failing := false
	for ctx.Err() == nil {
		err := l.renew(ctx)
		wait := lease / 3
		if err != nil && ctx.Err() == nil {
			wait = min(lease/10, time.Second)
			if !failing {
				l.r.cfg.Logger.Warn("outbox relay cannot renew its lanes, trying again", slog.Any("err", err))
			}
		}
		failing = err != nil
		l.pause(ctx, wait)
	}
}

func (l *lanes) pause(ctx context.Context, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-l.lost:
	}
}

func (l *lanes) renew(ctx context.Context) error {
	lease := l.r.cfg.Lease
	start := time.Now()
	call, cancel := context.WithTimeout(ctx, lease/2)
	defer cancel()
	got, err := l.r.cfg.Source.AcquireLanes(call, l.r.cfg.Owner, lease)
	if err != nil {
		return err
	}
	// The lease began in the store not before the call; a fifth of it is left for what is on its way to the broker.
	l.adopt(got, time.Until(start.Add(lease-lease/5)))
	return nil
}

// adopt makes got the lanes that are held, for the time left.
func (l *lanes) adopt(got []Lane, left time.Duration) {
	l.mu.Lock()
	before := len(l.held)
	added := false
	stay := make(map[int]bool, len(got))
	for _, lane := range got {
		stay[lane.Number] = true
		h := l.held[lane.Number]
		if h != nil && h.Token == lane.Token && h.ctx.Err() == nil && h.expiry.Reset(left) {
			continue
		}
		if h != nil {
			h.end(errGivenUp)
		}
		l.held[lane.Number] = l.hold(lane, left)
		added = true
	}
	for n, h := range l.held {
		if !stay[n] {
			h.end(errGivenUp)
			delete(l.held, n)
		}
	}
	now := len(l.held)
	l.mu.Unlock()
	if now != before {
		l.r.cfg.Observer.lanes(now)
	}
	if added {
		signal(l.changed)
	}
}

func (l *lanes) hold(lane Lane, left time.Duration) *held {
	ctx, cancel := context.WithCancelCause(l.work)
	h := &held{Lane: lane, ctx: ctx, cancel: cancel}
	h.expiry = time.AfterFunc(left, func() { cancel(errUncertain) })
	return h
}

func (h *held) end(cause error) {
	h.expiry.Stop()
	h.cancel(cause)
}

// drop forgets a lane that the source says is lost.
func (l *lanes) drop(h *held) {
	l.mu.Lock()
	h.end(ErrLaneLost)
	if l.held[h.Number] == h {
		delete(l.held, h.Number)
	}
	n := len(l.held)
	l.mu.Unlock()
	l.r.cfg.Observer.lanes(n)
	signal(l.lost)
}

// usable returns the lanes that may be published from now.
func (l *lanes) usable() []*held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(l.held)), func(h *held) bool { return h.ctx.Err() != nil })
}

// end ends every lane's context.
func (l *lanes) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.held {
		h.end(errGivenUp)
	}
	clear(l.held)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
