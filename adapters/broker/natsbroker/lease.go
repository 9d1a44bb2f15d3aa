package natsbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	// leaseTTL is how long the others watch an unchanged lease before they take it.
	leaseTTL = 3 * time.Second
	// leaseValid is how long a holder trusts its last renewal, counted from when it was sent. It
	// is shorter than leaseTTL, which the others count from when they saw it: a holder stops before another begins.
	leaseValid = leaseTTL * 3 / 4
	leaseRenew = leaseTTL / 4
	leaseWatch = 400 * time.Millisecond
)

var errLeaseLost = errors.New("the lease was lost to another replica")

// leaseRecord is the lease as it stands in the bucket. Its revision there is what counts: it moves
// with each renewal, and no clock of another machine is ever read.
type leaseRecord struct {
	Owner string `json:"owner"`
	// State is held, released (all was settled or handed back), or left (something was not).
	State string `json:"state"`
}

const (
	leaseHeld     = "held"
	leaseReleased = "released"
	leaseLeft     = "left"
)

// lease is one holding, renewed until it is released or lost.
type lease struct {
	kv     jetstream.KeyValue
	key    string
	owner  string
	logger *slog.Logger
	lost   chan struct{} // closed when it is lost
	onLost func()
	cancel context.CancelFunc
	done   chan struct{} // closed when renewing has ended

	mu       sync.Mutex
	revision uint64
	valid    time.Time
	clean    bool // the former holder left nothing unsettled out of its hands
}

// leases opens the bucket.
func (t *topology) leases(ctx context.Context) (jetstream.KeyValue, error) {
	kv, err := t.link.js.KeyValue(ctx, leaseBucket)
	if err == nil {
		return kv, nil
	}
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("opening bucket %s: %w", leaseBucket, err)
	}
	if t.cfg.Topology != topologyDeclare {
		return nil, fmt.Errorf("ordered subscriptions need the KeyValue bucket %s: make it, or set topology to declare", leaseBucket)
	}
	kv, err = t.link.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: leaseBucket, Description: "who consumes ordered subscriptions", History: 1,
		Storage: jetstream.FileStorage, Replicas: t.cfg.Replicas, Placement: t.cfg.Placement.servers(),
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = t.link.js.KeyValue(ctx, leaseBucket)
	}
	if err != nil {
		return nil, fmt.Errorf("creating bucket %s: %w", leaseBucket, err)
	}
	return kv, nil
}

// holdLease returns when this replica holds the lease. Standing by is healthy.
func (s *subscriber) holdLease(ctx context.Context) error {
	s.mu.Lock()
	held := s.lease
	s.mu.Unlock()
	if held != nil {
		if held.holds() {
			return nil
		}
		held.end()
		s.takeAway()
	}
	p, err := s.b.topology.place(ctx, s.sub.Topic)
	if err != nil {
		return err
	}
	kv, err := s.b.topology.leases(ctx)
	if err != nil {
		return err
	}
	l, err := s.takeLease(ctx, kv, leaseKey(p.stream, s.b.cfg.durable(s.sub.Topic, s.sub.Group)))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.lease = l
	s.mu.Unlock()
	return nil
}

// takeLease stands by until the lease is free.
func (s *subscriber) takeLease(ctx context.Context, kv jetstream.KeyValue, key string) (*lease, error) {
	l := &lease{kv: kv, key: key, owner: nuid.Next(), logger: s.logger, onLost: s.takeAway, lost: make(chan struct{}), done: make(chan struct{})}
	var seen uint64
	var since time.Time
	for {
		sent := time.Now()
		entry, err := kv.Get(ctx, key)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			if revision, err := kv.Create(ctx, key, l.record(leaseHeld)); err == nil {
				l.begin(revision, sent, false)
				return l, nil
			}
		case err != nil:
			return nil, fmt.Errorf("reading the lease: %w", err)
		default:
			if entry.Revision() != seen {
				seen, since = entry.Revision(), time.Now()
			}
			state := stateOf(entry.Value())
			if state == leaseHeld && time.Since(since) < leaseTTL {
				break
			}
			sent = time.Now()
			if revision, err := kv.Update(ctx, key, l.record(leaseHeld), entry.Revision()); err == nil {
				l.begin(revision, sent, state == leaseReleased)
				return l, nil
			}
		}
		s.SetProblem(nil)
		select {
		case <-time.After(leaseWatch):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func stateOf(value []byte) string {
	var record leaseRecord
	_ = json.Unmarshal(value, &record) // what cannot be read is not held
	return record.State
}

func (l *lease) record(state string) []byte {
	value, _ := json.Marshal(leaseRecord{Owner: l.owner, State: state})
	return value
}

func (l *lease) begin(revision uint64, sent time.Time, clean bool) {
	ctx, cancel := context.WithCancel(context.Background())
	l.revision, l.valid, l.clean, l.cancel = revision, sent.Add(leaseValid), clean, cancel
	go l.renew(ctx)
}

// renew holds on to the lease until it is ended or lost.
func (l *lease) renew(ctx context.Context) {
	defer close(l.done)
	for {
		select {
		case <-time.After(leaseRenew):
		case <-ctx.Done():
			return
		}
		err := l.update(ctx, leaseHeld)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errLeaseLost) || !l.holds() {
			l.logger.Warn("nats lease of an ordered subscription was lost", slog.Any("err", err))
			close(l.lost)
			l.onLost()
			return
		}
	}
}

// update writes the lease, if it is still ours.
func (l *lease) update(ctx context.Context, state string) error {
	ctx, cancel := context.WithTimeout(ctx, leaseRenew)
	defer cancel()
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	sent := time.Now()
	next, err := l.kv.Update(ctx, l.key, l.record(state), revision)
	if isConflict(err) {
		// Perhaps by our own update, whose answer was lost.
		entry, getErr := l.kv.Get(ctx, l.key)
		if getErr != nil {
			return fmt.Errorf("reading the lease: %w", getErr)
		}
		var record leaseRecord
		if json.Unmarshal(entry.Value(), &record) != nil || record.Owner != l.owner {
			return errLeaseLost
		}
		l.mu.Lock()
		l.revision = entry.Revision()
		l.mu.Unlock()
		return nil
	}
	if err != nil {
		return fmt.Errorf("renewing the lease: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision, l.valid = next, sent.Add(leaseValid)
	return nil
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// holds reports whether nobody else can hold the lease now.
func (l *lease) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.valid)
}

// end stops renewing.
func (l *lease) end() {
	l.cancel()
	<-l.done
}

// leaseLost is closed when the lease of an ordered subscription is lost; nil, which never is, for others.
func (s *subscriber) leaseLost() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil
	}
	return s.lease.lost
}

// mayTouch reports whether deliveries may be kept alive: without the lease they would block another's.
func (s *subscriber) mayTouch() bool {
	s.mu.Lock()
	l := s.lease
	s.mu.Unlock()
	return s.order == nil || l != nil && l.holds()
}

// takeClean reports, once for each holding, that the former holder left cleanly.
func (s *subscriber) takeClean() bool {
	s.mu.Lock()
	l := s.lease
	s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	clean := l.clean
	l.clean = false
	return clean
}

// releaseLease lets the next holder begin at once, where all in our hands was settled or handed back.
func (s *subscriber) releaseLease() {
	s.mu.Lock()
	l, state := s.lease, leaseReleased
	if s.lost {
		state = leaseLeft
	}
	s.mu.Unlock()
	if l == nil {
		return
	}
	l.end()
	if !l.holds() {
		return
	}
	if err := l.update(context.Background(), state); err != nil {
		s.logger.Debug("nats lease was not released; it ends by itself", slog.Any("err", err))
	}
}
