package parking

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// FeederConfig sets up a Feeder. Store, Scopes and Run are required.
type FeederConfig struct {
	Store Store
	// Scopes are the full scopes of the bindings that this process runs; rows of others are left to others.
	Scopes []string
	// Run runs one row and settles it in the store: when it returns nil the row was removed in the transaction of its
	// effect, postponed, or turned into a dead letter. An error says that the row is not settled (the store is not there, or ctx
	// ended): the feeder gives it back, unchanged, and slows down. ctx ends when the lease is lost or may be
	// (context.Cause is ErrLeaseLost then), or when a stop takes longer than StopTimeout.
	Run func(ctx context.Context, l Leased) error

	// Concurrency is the most rows that run at once. Defaults to 8.
	Concurrency int
	// Lease is how long the rows of a dead feeder are kept from the others. Extended three times as often. Defaults to 30s.
	Lease time.Duration
	// Poll is how long the feeder waits, when nothing is known to be due, before it looks again. Defaults to 500ms.
	Poll time.Duration
	// StopTimeout bounds how long a stop waits for rows that run. Defaults to 10s.
	StopTimeout time.Duration
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c FeederConfig) withDefaults() FeederConfig {
	if c.Concurrency <= 0 {
		c.Concurrency = 8
	}
	if c.Lease <= 0 {
		c.Lease = 30 * time.Second
	}
	if c.Poll <= 0 {
		c.Poll = 500 * time.Millisecond
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Feeder runs parked rows when they are due. Several feeders, in one process or
// many, share a store: a row is leased to one of them at a time, and of an ordering key only the
// oldest. It holds no database lock while a row runs.
//
// # Guarantees
//
// A due row of a running binding is run, by some feeder, again and again until it is settled. It is run by one feeder at a
// time as long as clocks advance alike; a feeder that was paused longer than its lease may still be running a row that
// another one has, and then the lease in the transaction of the effect (keystore.Completion.Settles) stops one of
// them. A feeder that dies loses nothing: its rows are leased again when their leases are over, and are marked Suspect.
type Feeder struct {
	cfg    FeederConfig
	wake   chan struct{}
	ended  chan struct{} // a row ended: its slot is free, and its ordering key's next row may be due
	slots  chan struct{}
	active sync.WaitGroup
	reads  trend // of the store, asked for rows
	runs   trend // of Run
}

// NewFeeder checks the configuration. It does no I/O.
func NewFeeder(cfg FeederConfig) (*Feeder, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("parking feeder: a Store is needed")
	case cfg.Run == nil:
		return nil, errors.New("parking feeder: Run is needed")
	case len(cfg.Scopes) == 0:
		return nil, errors.New("parking feeder: at least one scope is needed")
	}
	cfg = cfg.withDefaults()
	return &Feeder{
		cfg: cfg, wake: make(chan struct{}, 1), ended: make(chan struct{}, 1),
		slots: make(chan struct{}, cfg.Concurrency),
	}, nil
}

// Wake makes the feeder look for due rows now. It never blocks.
func (f *Feeder) Wake() { signal(f.wake) }

// Run feeds until ctx ends. Then it leases nothing more, waits for the rows that run (StopTimeout at most, before it
// cancels them), gives back those that are not settled, and returns nil. Trouble with the store never ends
// it. Run is called once at a time.
func (f *Feeder) Run(ctx context.Context) error {
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(context.Canceled)
	for ctx.Err() == nil {
		f.wait(ctx, f.feed(ctx, work))
	}
	timer := time.AfterFunc(f.cfg.StopTimeout, func() { kill(errStopping) })
	defer timer.Stop()
	f.active.Wait()
	return nil
}

var errStopping = errors.New("parking: the feeder stops")

// feed leases what is due, as much as there are free slots, starts it, and returns how long nothing more will be due.
func (f *Feeder) feed(ctx, work context.Context) time.Duration {
	free := cap(f.slots) - len(f.slots)
	if free == 0 {
		return f.cfg.Poll // a row that ends wakes us
	}
	if pause := max(f.reads.pause(), f.runs.pause()); pause > 0 {
		return pause
	}
	began := time.Now()
	rows, err := f.cfg.Store.LeaseDue(ctx, f.cfg.Scopes, free, f.cfg.Lease)
	if err != nil {
		if ctx.Err() == nil {
			f.reads.bad()
			f.cfg.Logger.Warn("parked rows cannot be read, trying again", slog.Any("err", err))
		}
		return f.cfg.Poll
	}
	f.reads.good()
	for _, row := range rows {
		f.slots <- struct{}{}
		f.active.Go(func() { f.run(ctx, work, row, began) })
	}
	if len(rows) == free {
		return 0
	}
	return f.nextDue(ctx)
}

// nextDue is at most Poll. What is due and was not leased (it is behind another row, or somebody else's) is looked for
// again after Poll or a second.
func (f *Feeder) nextDue(ctx context.Context) time.Duration {
	due, waits, err := f.cfg.Store.NextDue(ctx, f.cfg.Scopes)
	switch {
	case err != nil || !waits:
		return f.cfg.Poll
	case due <= 0:
		return min(f.cfg.Poll, time.Second)
	}
	return min(due, f.cfg.Poll)
}

func (f *Feeder) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-f.wake:
	case <-f.ended:
	case <-timer.C:
	}
}

// run runs one row under its lease and gives it back if it is not settled.
func (f *Feeder) run(stop, work context.Context, row Leased, began time.Time) {
	defer func() {
		<-f.slots
		signal(f.ended)
	}()
	ctx, cancel := context.WithCancelCause(work)
	held := f.hold(ctx, cancel, row.Lease, began)
	err := f.cfg.Run(ctx, row)
	cancel(context.Canceled)
	<-held
	if err == nil {
		f.runs.good()
		return
	}
	if stop.Err() == nil && !errors.Is(err, ErrLeaseLost) {
		f.runs.bad()
		f.cfg.Logger.Warn("parked row not settled, giving it back",
			slog.String("scope", row.Scope), slog.String("topic", row.Topic), slog.String("message_uuid", row.UUID), slog.Any("err", err))
	}
	f.giveBack(stop, row)
}

// giveBack returns an unsettled row: at once on a stop, so that another feeder takes it, else after a wait.
func (f *Feeder) giveBack(stop context.Context, row Leased) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stop), min(f.cfg.Lease, 5*time.Second))
	defer cancel()
	var err error
	if stop.Err() != nil {
		err = f.cfg.Store.Release(ctx, row.Lease)
	} else {
		err = f.cfg.Store.Postpone(ctx, row.Lease, max(f.runs.pause(), f.cfg.Poll), row.Row)
	}
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		f.cfg.Logger.Warn("parked row cannot be given back; it is due again when its lease is over",
			slog.String("scope", row.Scope), slog.String("message_uuid", row.UUID), slog.Any("err", err))
	}
}

// hold extends the lease until ctx ends, and cancels ctx when the lease is lost or cannot be
// known to be held. The returned channel is closed when it extends no more.
func (f *Feeder) hold(ctx context.Context, cancel context.CancelCauseFunc, lease Lease, began time.Time) <-chan struct{} {
	held := make(chan struct{})
	go func() {
		defer close(held)
		// A fifth of the lease is left for what is on its way to the store.
		safe := f.cfg.Lease - f.cfg.Lease/5
		expiry := time.AfterFunc(time.Until(began.Add(safe)), func() { cancel(ErrLeaseLost) })
		defer expiry.Stop()
		tick := time.NewTicker(f.cfg.Lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			start := time.Now()
			err := f.extend(ctx, lease)
			switch {
			case err == nil:
				expiry.Reset(time.Until(start.Add(safe)))
				tick.Reset(f.cfg.Lease / 3)
			case errors.Is(err, ErrLeaseLost):
				cancel(ErrLeaseLost)
			default:
				tick.Reset(min(f.cfg.Lease/10, time.Second))
			}
		}
	}()
	return held
}

func (f *Feeder) extend(ctx context.Context, lease Lease) error {
	call, cancel := context.WithTimeout(ctx, f.cfg.Lease/2)
	defer cancel()
	return f.cfg.Store.Extend(call, lease, f.cfg.Lease)
}

// trend slows the feeder down while nothing works.
type trend struct {
	mu    sync.Mutex
	fails int
	until time.Time
}

const (
	shortestPause = 200 * time.Millisecond
	longestPause  = 10 * time.Second
)

func (t *trend) bad() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.until) {
		return // one outage fails many rows at once
	}
	t.fails++
	wait := min(shortestPause<<min(t.fails-1, 8), longestPause)
	t.until = time.Now().Add(wait - rand.N(wait/4))
}

func (t *trend) good() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fails, t.until = 0, time.Time{}
}

// pause is how long to wait before the next try.
func (t *trend) pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.until), 0)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
