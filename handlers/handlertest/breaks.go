package handlertest

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/oncemill/oncemill/middleware/faultpoint"
)

var (
	errInjected = errors.New("handlertest: this step was made to fail")
	errCut      = fmt.Errorf("handlertest: the connection was cut here: %w", driver.ErrBadConn)
)

// panicked is what a broken step panics with.
type panicked struct{}

func (panicked) String() string { return "handlertest: this step was made to panic" }

// breakStep breaks the step at which the action stands.
func (tr *trial) breakStep(ctx context.Context, a action, at step) error {
	switch a.Fault.Kind {
	case Panic:
		panic(panicked{})
	case Deadline:
		<-ctx.Done()
		return context.Cause(ctx)
	case Cut:
		return tr.k.place.cut(ctx, tr.k.replicas()[a.Replica].name)
	case Kill:
		die()
	case Rival:
		tr.rival(a)
		return nil
	case Overtaken:
		tr.overtake(a)
		return nil
	}
	return errInjected
}

// die kills this process as an operating system does that has no memory left.
func die() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// overlap is how long a step stands still while a rival may be waiting for it. A rival that is held up by a lock goes on when the step does.
const overlap = 20 * time.Millisecond

// rival delivers the same message to the other replica, and lets the step go on when that has settled it, or is held up.
func (tr *trial) rival(a action) {
	other := tr.k.replicas()[1-a.Replica]
	claims := make(chan struct{}, 1)
	other.breakAt(func(_ context.Context, at step) error {
		if at.point == faultpoint.BeforeClaim {
			select {
			case claims <- struct{}{}:
			default:
			}
		}
		return nil
	})
	settled := tr.deliverBeside(other, a.Message)
	select {
	case <-settled:
		return
	case <-claims:
	}
	select {
	case <-settled:
	case <-time.After(overlap):
	}
}

// deliverBeside delivers a message to a replica in a goroutine of its own, which the trial waits for before it settles.
func (tr *trial) deliverBeside(r *replica, message int) <-chan struct{} {
	settled := make(chan struct{})
	m := tr.messages[message]
	msg := tr.k.message(m.Key, m.Payload)
	tr.beside.Go(func() {
		defer close(settled)
		if tr.k.deliver(r, m.To, msg, false) == HandedBack {
			tr.mu.Lock()
			tr.returned = append(tr.returned, message)
			tr.mu.Unlock()
		}
	})
	return settled
}

// overtake lets the lease pass, and lets the other replica take over and finish.
func (tr *trial) overtake(a action) {
	other := tr.k.replicas()[1-a.Replica]
	tr.k.pass(time.Minute)
	if a.Do == publish {
		if err := tr.k.relay(other, nil); err != nil {
			tr.k.t.Errorf("the relay that took over: %v", err)
		}
		return
	}
	<-tr.deliverBeside(other, a.Message)
}
