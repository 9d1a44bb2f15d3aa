package idempotency

import (
	"context"
	"sync"
)

// Gate admits the handlers of one process. A suspect, a message that may have killed a process before,
// runs alone: it waits until nobody is inside, and while suspects wait nobody else is let in. So a crash
// tells which message caused it. All engines of a process share one Gate. The zero Gate is ready.
type Gate struct {
	mu       sync.Mutex
	inside   int
	alone    bool
	suspects int
	changed  chan struct{}
}

// Enter waits for admission and returns what ends the stay. It returns ctx's error when ctx ends first.
func (g *Gate) Enter(ctx context.Context, suspect bool) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if suspect {
		g.suspects++
		defer func() { g.suspects--; g.wake() }()
	}
	for g.shut(suspect) {
		if err := g.wait(ctx); err != nil {
			return nil, err
		}
	}
	g.inside++
	g.alone = suspect
	return sync.OnceFunc(g.leave), nil
}

func (g *Gate) shut(suspect bool) bool {
	if suspect {
		return g.inside > 0
	}
	return g.alone || g.suspects > 0
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.alone = false
	g.wake()
}

// wait releases the mutex until something changed or ctx ends.
func (g *Gate) wait(ctx context.Context) error {
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	changed := g.changed
	g.mu.Unlock()
	defer g.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Gate) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}
