package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

var errBroken = errors.New("broken for the test")

// failAt makes a fault that breaks a point the first times, or always where times is negative.
func failAt(point idempotency.FaultPoint, times int, err error) idempotency.Fault {
	var mu sync.Mutex
	return func(_ context.Context, at idempotency.FaultPoint) error {
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
	point   idempotency.FaultPoint
	once    sync.Once
	reached chan struct{}
	free    chan struct{}
	release func()
}

func newBreakpoint(t *testing.T, point idempotency.FaultPoint) *breakpoint {
	b := &breakpoint{point: point, reached: make(chan struct{}), free: make(chan struct{})}
	b.release = sync.OnceFunc(func() { close(b.free) })
	t.Cleanup(b.release)
	return b
}

// fault is for the engine's Config.
func (b *breakpoint) fault(_ context.Context, at idempotency.FaultPoint) error {
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

// death makes an engine die at a point: there, and at every point after it, also in its renewals, nothing goes on until the end of the test, as in a
// process that was killed. It is for points at which no transaction is open, whose locks a killed process would lose.
func death(t *testing.T, point idempotency.FaultPoint) (idempotency.Fault, <-chan struct{}) {
	dead, end := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(end) })
	var once sync.Once
	return func(_ context.Context, at idempotency.FaultPoint) error {
		if at == point {
			once.Do(func() { close(dead) })
		}
		select {
		case <-dead:
			<-end
			return errBroken
		default:
			return nil
		}
	}, dead
}
