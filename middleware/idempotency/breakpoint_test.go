package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

var errBroken = errors.New("broken for the test")

// failAt makes a fault that breaks a point the first times, or always where times is negative.
func failAt(point faultpoint.Point, times int, err error) faultpoint.Hook {
	var mu sync.Mutex
	return func(_ context.Context, at faultpoint.Point) error {
		mu.Lock()
		defer mu.Unlock()
		if at != point || times == 0 {
			return nil
		}
		times--
		return err
	}
}

// breakpoint holds the first who comes to a fault point until it is released. It forces an order without waiting for time to pass.
type breakpoint struct {
	point   faultpoint.Point
	once    sync.Once
	reached chan struct{}
	free    chan struct{}
	release func()
}

func newBreakpoint(t *testing.T, point faultpoint.Point) *breakpoint {
	b := &breakpoint{point: point, reached: make(chan struct{}), free: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.free) })
	t.Cleanup(b.release)
	return b
}

// fault is for the engine's Config.
func (b *breakpoint) fault(_ context.Context, at faultpoint.Point) error {
	if at == b.point {
		b.hit()
	}
	return nil
}

// hit holds the first caller; a handler may call it, too.
func (b *breakpoint) hit() {
	b.once.Do(func() {
		close(b.reached)
		<-b.free
	})
}

// await waits until somebody is held.
func (b *breakpoint) await(t *testing.T) {
	t.Helper()
	await(t, b.reached, "breakpoint "+string(b.point))
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(t, "did not happen: "+what)
	}
}

// death kills a process at a fault point: there, and at every point after it, also in its renewals, nothing goes on
// until the end of the test. It is for points at which no transaction is open, whose locks a killed process would lose.
type death struct {
	point   faultpoint.Point
	once    sync.Once
	reached chan struct{}
}

// dies delivers a message to an engine of a process of its own, which dies of it at point, and returns when it is dead.
func (h *harness) dies(t *testing.T, b idempotency.Binding, point faultpoint.Point, msg *message.Message) {
	t.Helper()
	d := &death{point: point, reached: make(chan struct{})}
	s := h.open(t, 0)
	if b.Scope == "" {
		b.Scope = scope
	}
	b.Topic = topic
	e, err := idempotency.New(idempotency.Config{Binding: b, Keys: s.Keys(), Parking: s.Parking(), Fault: d.fault, Owner: "dead"})
	require.NoError(t, err)
	var process sync.WaitGroup
	process.Go(func() { _ = e.Process(msg) })
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		e.Stop()
		_ = e.Wait(over)
		process.Wait()
	})
	await(t, d.reached, "the process dies")
}

// fault stays until the engine is cut off, which is when the test ends.
func (d *death) fault(ctx context.Context, at faultpoint.Point) error {
	if at == d.point {
		d.once.Do(func() { close(d.reached) })
	}
	select {
	case <-d.reached:
		<-ctx.Done()
		return errBroken
	default:
		return nil
	}
}
