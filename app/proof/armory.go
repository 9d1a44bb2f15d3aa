package proof

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// errFault is what a broken step returns.
var errFault = errors.New("a fault of the trial")

// rivalWait bounds how long a step waits for its rival.
const rivalWait = 5 * time.Second

// armory holds a replica's armed faults and fires them. It is safe for concurrent use.
type armory struct {
	report func(Report)
	hang   time.Duration
	cut    func(line string) bool // breaks its connections; false where there are none

	mu      sync.Mutex
	arms    []*armed
	trace   bool
	renewed map[string]chan struct{} // by key: closed at its next renewal
	rivals  map[int]chan struct{}
	number  int
}

type armed struct {
	Arm
	seen, fired int
}

func newArmory(report func(Report), hang time.Duration, cut func(line string) bool) *armory {
	return &armory{report: report, hang: hang, cut: cut, renewed: map[string]chan struct{}{}, rivals: map[int]chan struct{}{}}
}

func (a *armory) arm(arms []Arm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range arms {
		a.arms = append(a.arms, &armed{Arm: one})
	}
}

func (a *armory) disarm(ids []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arms = slices.DeleteFunc(a.arms, func(one *armed) bool { return slices.Contains(ids, one.ID) })
}

func (a *armory) traced(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trace = on
}

// engine is the hook of the engines.
func (a *armory) engine(ctx context.Context, at faultpoint.Point) error {
	s, _ := faultpoint.SubjectOf(ctx)
	one := a.match(s.Scope, s.Key, at)
	if one == nil {
		return nil
	}
	a.tell(*one, history.Event{Scope: s.Scope, Key: s.Key})
	switch one.Kind {
	case FaultRival:
		a.rival(ctx, s)
		return nil
	case hold:
		a.hold(ctx, s.Key)
		return nil
	case FaultDeadline:
		pause(ctx, a.hang)
		return fmt.Errorf("%w: %w", errFault, context.DeadlineExceeded)
	}
	return a.strike(*one)
}

// relay is the hook of the relay.
func (a *armory) relay(ctx context.Context, at faultpoint.Point) error {
	one := a.match("", "", at)
	if one == nil {
		return nil
	}
	a.tell(*one, history.Event{})
	if one.Kind == FaultDeadline {
		pause(ctx, a.hang)
		return nil
	}
	return a.strike(*one)
}

// strike is what every fault does that needs no message.
func (a *armory) strike(one Arm) error {
	switch one.Kind {
	case FaultKill:
		kill()
	case FaultPanic:
		panic(errFault)
	case FaultCut:
		if a.cut(lineAt(one.Point)) {
			return nil // whoever uses one next finds out
		}
		return fmt.Errorf("%w: %w", errFault, driver.ErrBadConn)
	}
	return errFault
}

// lineAt is what a cut at a step breaks: at each but these the next thing to come is the database's.
func lineAt(at faultpoint.Point) string {
	switch at {
	case faultpoint.Received, faultpoint.BeforeAck, faultpoint.OutboxRead:
		return LineBroker
	}
	return LineDatabase
}

// kill ends this process at once.
func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		os.Exit(137)
	}
	select {}
}

// match returns the arm that fires at this step, or nil.
func (a *armory) match(scope, key string, at faultpoint.Point) *Arm {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trace {
		a.report(Report{Event: &history.Event{At: time.Now(), Kind: history.Step, Scope: scope, Key: key, Point: string(at)}})
	}
	if at == faultpoint.BeforeRenewal && a.renewed[key] != nil {
		close(a.renewed[key])
		delete(a.renewed, key)
	}
	for i, one := range a.arms {
		if one.Scope != scope || one.Point != at || one.Key != "" && one.Key != key {
			continue
		}
		if one.seen++; one.seen < one.Nth {
			continue
		}
		if one.fired++; one.fired >= one.Times {
			a.arms = slices.Delete(a.arms, i, i+1)
		}
		fired := one.Arm
		return &fired
	}
	return nil
}

// tell reports a fault before it strikes: a process that kills itself says nothing afterwards.
func (a *armory) tell(one Arm, e history.Event) {
	e.At, e.Kind, e.Point, e.What = time.Now(), history.Fault, string(one.Point), string(one.Kind)
	a.report(Report{Event: &e, Fired: one.ID})
}

// rival asks the director for the message once more and waits until somebody has received it.
func (a *armory) rival(ctx context.Context, s faultpoint.Subject) {
	a.mu.Lock()
	a.number++
	number, received := a.number, make(chan struct{})
	a.rivals[number] = received
	a.mu.Unlock()
	a.report(Report{Rival: &Message{Number: number, Scope: s.Scope, Key: s.Key, UUID: s.Message.UUID, Metadata: s.Message.Metadata, Payload: s.Message.Payload}})
	t := time.NewTimer(rivalWait)
	defer t.Stop()
	select {
	case <-received:
	case <-ctx.Done():
	case <-t.C:
	}
}

func (a *armory) goOn(number int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if received, ok := a.rivals[number]; ok {
		close(received)
		delete(a.rivals, number)
	}
}

// hold waits until the lease of the key is renewed, for some time.
func (a *armory) hold(ctx context.Context, key string) {
	a.mu.Lock()
	renewal := make(chan struct{})
	a.renewed[key] = renewal
	a.mu.Unlock()
	select {
	case <-renewal:
	case <-ctx.Done():
	case <-time.After(4 * a.hang):
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
