package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// errTurn is a writer's turn that did not come in time; another try may succeed.
	errTurn   = errors.New("sqlite: other writers kept the database busy for too long")
	errClosed = errors.New("sqlite: the store is closed")
)

// closeWait bounds how long closing waits for a turn that another process holds.
const closeWait = 5 * time.Second

// turnstile lets one writer at a time through, over goroutines and processes, in the order in which they came. SQLite's own
// wait polls, and starves a second process. Here a writer first takes the entrance, waits there for the
// database, and gives the entrance free for the next: who comes again must queue behind whoever waits. Of one process only
// one goroutine stands in that queue; the others wait in the process, lease renewals first.
type turnstile struct {
	entrance, database fileLock

	mu      sync.Mutex
	taken   bool // held, or being waited for by block
	closed  bool
	shut    bool // the lock files are closed, which gave the locks back
	urgent  []*visitor
	regular []*visitor
	blocked sync.WaitGroup
}

// visitor is one writer that waits for its turn.
type visitor struct{ turn chan error }

// fileLock is an advisory lock that the operating system gives back when the process dies.
type fileLock interface {
	// tryLock returns false where somebody else has the lock.
	tryLock() (bool, error)
	// lock waits for the lock; it cannot be interrupted.
	lock() error
	unlock() error
	close() error
}

func newTurnstile(path string) (*turnstile, error) {
	entrance, err := openLock(path + "-queue")
	if err != nil {
		return nil, err
	}
	database, err := openLock(path + "-writer")
	if err != nil {
		return nil, errors.Join(err, entrance.close())
	}
	return &turnstile{entrance: entrance, database: database}, nil
}

// enter waits for the turn, at most for wait, and returns what ends it.
func (t *turnstile) enter(ctx context.Context, urgent bool, wait time.Duration) (leave func(), err error) {
	v := &visitor{turn: make(chan error, 1)}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, errClosed
	}
	if urgent {
		t.urgent = append(t.urgent, v)
	} else {
		t.regular = append(t.regular, v)
	}
	t.advance()
	t.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err = <-v.turn:
	case <-ctx.Done():
		err = t.abandon(v, context.Cause(ctx))
	case <-timer.C:
		err = t.abandon(v, fmt.Errorf("%w (%s)", errTurn, wait))
	}
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(t.leave), nil
}

// abandon takes v out of the queue. A turn that was given to it at the same moment goes on to the next.
func (t *turnstile) abandon(v *visitor, why error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.urgent, t.regular = without(t.urgent, v), without(t.regular, v)
	select {
	case err := <-v.turn:
		if err == nil {
			t.free()
		}
	default:
	}
	return why
}

func without(queue []*visitor, v *visitor) []*visitor {
	for i, q := range queue {
		if q == v {
			return append(queue[:i:i], queue[i+1:]...)
		}
	}
	return queue
}

func (t *turnstile) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free()
}

// free gives the database back and lets the next one in. The caller holds mu.
func (t *turnstile) free() {
	if !t.shut { // a transaction whose context ended is rolled back in the background, also after close
		_ = t.database.unlock()
	}
	t.taken = false
	t.advance()
}

// advance lets the next visitor in if nobody has the turn. The caller holds mu.
func (t *turnstile) advance() {
	if t.taken || len(t.urgent)+len(t.regular) == 0 {
		return
	}
	t.taken = true
	inside, err := t.entrance.tryLock()
	if err == nil && inside {
		var mine bool
		if mine, err = t.database.tryLock(); err == nil && mine {
			err = t.entrance.unlock()
			t.admit(err)
			return
		}
	}
	if err != nil {
		t.admit(errors.Join(err, t.entrance.unlock()))
		return
	}
	t.blocked.Go(func() { t.block(inside) })
}

// block waits for the turn among processes.
func (t *turnstile) block(inside bool) {
	var err error
	if !inside {
		err = t.entrance.lock()
	}
	if err == nil {
		err = t.database.lock()
	}
	err = errors.Join(err, t.entrance.unlock())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.admit(err)
}

// admit gives the turn, or the error that there is none, to the first who waits. The caller holds mu.
func (t *turnstile) admit(err error) {
	queue := &t.urgent
	if len(t.urgent) == 0 {
		queue = &t.regular
	}
	if len(*queue) == 0 || err != nil {
		_ = t.database.unlock()
		t.taken = false
	}
	if len(*queue) == 0 {
		return
	}
	v := (*queue)[0]
	*queue = (*queue)[1:]
	if err != nil {
		err = fmt.Errorf("queue for the database: %w", err)
	}
	v.turn <- err
	if err != nil {
		t.advance()
	}
}

// close refuses further visitors. The one who has the turn may still leave.
func (t *turnstile) close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	for _, v := range append(t.urgent, t.regular...) {
		v.turn <- errClosed
	}
	t.urgent, t.regular = nil, nil
	t.mu.Unlock()

	gone := make(chan struct{})
	go func() { t.blocked.Wait(); close(gone) }()
	select {
	case <-gone:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.shut = true
		return errors.Join(t.entrance.close(), t.database.close())
	case <-time.After(closeWait):
		return errors.New("sqlite: another process holds the database and does not give it back; its lock files stay open until this process ends")
	}
}
