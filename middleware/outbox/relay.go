package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// RelayConfig sets up a Relay. Source, Publisher and Owner are required.
type RelayConfig struct {
	Source    Source
	Publisher Publisher
	// Owner names this relay among those that share the source; unique to the process and its start.
	Owner string
	// Logger defaults to slog.Default().
	Logger *slog.Logger

	// OrderedBatch says that within one PublishBatch a refused message stops those of its ordering key that follow
	// it. Without it two records of one ordering key are never in one batch.
	OrderedBatch bool
	// Batch is the most records that are being published and not yet marked, over all lanes: the most copies that one
	// crash can make. Defaults to 100.
	Batch int
	// Workers is the number of lanes that are worked at the same moment; they share the batch. More of them help where one
	// slow topic should not hold up the others, fewer make larger batches. Defaults to 2.
	Workers int
	// Poll is how long an idle lane waits before it looks again, when nothing wakes it. Defaults to 500ms.
	Poll time.Duration
	// Lease is how long a dead relay keeps its lanes from the others. Renewed three times as often. Defaults to 10s.
	Lease time.Duration
	// MaxPayload is the largest payload in bytes that the relay hands to the publisher; a larger one is set aside.
	// Defaults to no limit: the publisher has its own.
	MaxPayload int
	// PublishTimeout bounds one call of the publisher. Defaults to 15s.
	PublishTimeout time.Duration
	// StopTimeout bounds how long a stop waits for what is being published, and then for the release of its lanes. Defaults to 10s.
	StopTimeout time.Duration

	// MaxAttempts is after how many refusals a record is set aside. Outages and unroutable messages do not
	// count. Defaults to 20, which with the default backoff takes about an hour.
	MaxAttempts int
	// BackoffMin and BackoffMax bound the wait between two attempts of one record. Default to 500ms and 5m.
	BackoffMin time.Duration
	BackoffMax time.Duration

	// StatusEvery is how often Observer.Status is told the outbox's state. Defaults to 15s.
	StatusEvery time.Duration
	Observer    Observer

	// Fault is called at each step of faultpoint.Relay. An error ends the relay there and
	// then, as a crash would: nothing more is marked and its lanes are not released. Nil in production.
	Fault faultpoint.Hook
}

func (c RelayConfig) withDefaults() RelayConfig {
	c.Batch = or(c.Batch, 100)
	c.Workers = or(c.Workers, 2)
	c.Poll = or(c.Poll, 500*time.Millisecond)
	c.Lease = or(c.Lease, 10*time.Second)
	c.PublishTimeout = or(c.PublishTimeout, 15*time.Second)
	c.StopTimeout = or(c.StopTimeout, 10*time.Second)
	c.MaxAttempts = or(c.MaxAttempts, 20)
	c.BackoffMin = or(c.BackoffMin, 500*time.Millisecond)
	c.BackoffMax = max(or(c.BackoffMax, 5*time.Minute), c.BackoffMin)
	c.MaxPayload = or(c.MaxPayload, math.MaxInt)
	c.StatusEvery = or(c.StatusEvery, 15*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func or[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Relay publishes what stands in an outbox. Several relays share one source. See the package comment
// for what it promises.
type Relay struct {
	cfg RelayConfig
	// proof is when the broker last confirmed something, as nanoseconds of the monotonic clock since born; 0 is never.
	proof atomic.Int64
	born  time.Time
	// down is true while the broker is known to be unavailable, so that it is logged once.
	down atomic.Bool
	// quiet keeps the log short.
	quiet quiet
}

// NewRelay checks the configuration. It does no I/O.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	switch {
	case cfg.Source == nil:
		return nil, errors.New("outbox relay: a Source is needed")
	case cfg.Publisher == nil:
		return nil, errors.New("outbox relay: a Publisher is needed")
	case cfg.Owner == "":
		return nil, errors.New("outbox relay: an Owner is needed")
	}
	return &Relay{cfg: cfg.withDefaults(), born: time.Now()}, nil
}

// Run publishes until ctx ends; then it finishes what is being published, marks it, releases its lanes and
// returns nil. Trouble with source or broker never ends it: it is logged and tried again. The only error it
// returns is that of Fault. Run is called once at a time.
func (r *Relay) Run(ctx context.Context) error {
	s := newSession(ctx, r)
	defer s.close()
	if err := s.dispatch(ctx); err != nil {
		return fmt.Errorf("outbox relay: stopped by a fault: %w", err)
	}
	return nil
}

// provenSince reports that the broker confirmed something after t.
func (r *Relay) provenSince(t time.Time) bool {
	at := r.proof.Load()
	return at != 0 && r.born.Add(time.Duration(at)).After(t)
}

// prove notes that the broker confirmed something now.
func (r *Relay) prove() {
	r.proof.Store(int64(time.Since(r.born)) + 1)
	if r.down.CompareAndSwap(true, false) {
		r.cfg.Logger.Info("outbox relay publishes again")
	}
}

func (r *Relay) fault(ctx context.Context, at faultpoint.Point) error {
	if err := r.cfg.Fault.At(ctx, at); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return nil
}
