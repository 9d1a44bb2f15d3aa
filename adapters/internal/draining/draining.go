// Package draining is the life of a subscriber: it subscribes once, stops taking messages, settles what is in flight or hands it back, and ends.
package draining

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/oncemill/oncemill/adapters/broker"
)

// What Consuming says of a subscriber that does not consume, and Subscribe of one that cannot.
var (
	ErrNotSubscribed = errors.New("not subscribed yet")
	ErrSubscribed    = errors.New("a subscriber subscribes once")
	ErrStarting      = errors.New("the subscription is starting")
	ErrStopping      = errors.New("the subscriber is stopping")
	ErrStopped       = errors.New("the subscriber has stopped")
)

// Life is embedded by a subscriber, whose Drain, Close, Consuming and CaughtUp it is. Safe for concurrent use.
type Life struct {
	sub    broker.Subscription
	forget func()

	stop, abandon, stopped, caughtUp           chan struct{}
	stopOnce, abandonOnce, endOnce, caughtOnce sync.Once

	mu      sync.Mutex
	started bool
	problem error
}

// New makes the life of a subscriber that has not subscribed yet. forget is called when there is nothing left to close.
func New(sub broker.Subscription, forget func()) *Life {
	return &Life{
		sub: sub, forget: forget, problem: ErrNotSubscribed,
		stop: make(chan struct{}), abandon: make(chan struct{}), stopped: make(chan struct{}), caughtUp: make(chan struct{}),
	}
}

// Begin subscribes: it runs run in a goroutine, which calls End when all is settled, or returns why not. The end of ctx stops the subscriber.
func (l *Life) Begin(ctx context.Context, topic string, run func()) error {
	if topic != l.sub.Topic {
		return fmt.Errorf("this subscriber is for topic %s, not for %.50q", l.sub.Topic, topic)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.started:
		return ErrSubscribed
	case l.IsStopping():
		return ErrStopped
	case ctx.Err() != nil:
		return ctx.Err()
	}
	l.started, l.problem = true, ErrStarting
	release := context.AfterFunc(ctx, l.Stop)
	go func() {
		defer release()
		run()
	}()
	return nil
}

// Stop ends the taking of messages.
func (l *Life) Stop() {
	l.stopOnce.Do(func() {
		l.SetProblem(ErrStopping)
		close(l.stop)
	})
}

// GiveUp stops without waiting for what is in flight.
func (l *Life) GiveUp() {
	l.Stop()
	l.abandonOnce.Do(func() { close(l.abandon) })
}

// End says that all is settled or handed back.
func (l *Life) End() {
	l.endOnce.Do(func() {
		l.SetProblem(ErrStopped)
		l.forget()
		close(l.stopped)
	})
}

// Stopping is closed when no more messages are to be taken.
func (l *Life) Stopping() <-chan struct{} { return l.stop }

// IsStopping reports that Stopping is closed.
func (l *Life) IsStopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// Abandoned is closed when what is in flight is to be handed back.
func (l *Life) Abandoned() <-chan struct{} { return l.abandon }

// Drain stops taking messages, and returns when what is in flight is settled, or handed back because ctx ended.
func (l *Life) Drain(ctx context.Context) error {
	l.Stop()
	l.mu.Lock()
	started := l.started
	l.mu.Unlock()
	if !started {
		l.forget()
		return nil
	}
	select {
	case <-l.stopped:
		return nil
	case <-ctx.Done():
	}
	l.GiveUp()
	<-l.stopped
	return fmt.Errorf("draining %s for %s: %w", l.sub.Topic, l.sub.Group, ctx.Err())
}

// Close hands back what is in flight.
func (l *Life) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Drain(ended); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// SetProblem says why messages would not be delivered now; nil that they would.
func (l *Life) SetProblem(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A stop is final, whatever comes to its end later says.
	if !errors.Is(l.problem, ErrStopping) || errors.Is(err, ErrStopped) {
		l.problem = err
	}
}

// Consuming returns nil while messages would be delivered now, or while another replica is the active one of an ordered subscription and
// this one stands by.
func (l *Life) Consuming() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

// CatchUp says that what stood in the queue at Subscribe is settled.
func (l *Life) CatchUp() { l.caughtOnce.Do(func() { close(l.caughtUp) }) }

// CaughtUp is closed when what stood in the queue at Subscribe is settled.
func (l *Life) CaughtUp() <-chan struct{} { return l.caughtUp }
