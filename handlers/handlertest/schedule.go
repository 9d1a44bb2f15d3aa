package handlertest

import (
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// Kind is a way in which a step can go wrong.
type Kind string

// The kinds of faults.
const (
	// Failure: the step fails with an error.
	Failure Kind = "error"
	// Panic: the step panics.
	Panic Kind = "panic"
	// Deadline: the step hangs until the handler's deadline is over.
	Deadline Kind = "deadline"
	// Cut: the connection to the database breaks at the step.
	Cut Kind = "cut"
	// Kill: the process is killed at the step (SIGKILL; it is a process of its own).
	Kill Kind = "kill"
	// Rival: another replica gets the same message while this one stands at the step.
	Rival Kind = "rival"
	// Overtaken: this replica stands still at the step until its lease is over and another replica has taken the message, or the
	// outbox, over; then it goes on.
	Overtaken Kind = "overtaken"
)

// kinds are all of them, the simplest first.
var kinds = []Kind{Failure, Panic, Deadline, Cut, Kill, Rival, Overtaken}

// What an action does.
const (
	deliver = "deliver"
	advance = "advance"
	publish = "publish"
)

// action is one thing that happens in a schedule.
type action struct {
	Do      string
	Message int // of deliver: its place in the proof's messages
	Replica int // 0 or 1
	Fault   *fault
}

// fault breaks the n-th step (from 1) of its action.
type fault struct {
	Step int
	Kind Kind
}

// schedule is what happens, in order. When it is over, everything is delivered again until it is quiet, without faults.
type schedule []action

// step is a step that an undisturbed run passed.
type step struct {
	point    faultpoint.Point
	external bool // the binding has an outside effect
	leased   bool // somebody else can take over what is being done here, once its lease is over
}

// name says which step breaks how, for a subtest's name.
func (s step) name(number int, kind Kind) string {
	return fmt.Sprintf("%02d-%s-%s", number, s.point, kind)
}

// can reports whether a step can go wrong in that way.
func (s step) can(kind Kind) bool {
	relayed := s.point == faultpoint.OutboxRead || s.point == faultpoint.PublishedBeforeMarked || s.point == faultpoint.Marked
	switch kind {
	case Failure:
		return s.point != faultpoint.Answering // a Call that has its effect and says that it failed is the handler's fault
	case Deadline: // the other steps have no deadline of the handler's: the store and the broker bound them
		return s.point == faultpoint.BeforeStatement || s.point == faultpoint.AfterStatement || s.point == faultpoint.Answering
	case Cut:
		return !relayed && s.point != faultpoint.Answering && s.point != faultpoint.Called // no connection of the database's is in use
	case Panic:
		return !relayed // a relay ends at every error of a step, as at this
	case Rival:
		return !relayed // a second relay waits for the lease
	case Overtaken:
		return s.leased
	}
	return true
}

// text is the schedule for people, with the keys of its messages and the names of the steps that were reached.
func (s schedule) text(messages []Message, reached map[int]faultpoint.Point) string {
	lines := make([]string, 0, len(s))
	for i, a := range s {
		line := a.Do
		switch a.Do {
		case deliver:
			line = fmt.Sprintf("deliver %s (%s) to replica %d", messages[a.Message].Key, messages[a.Message].To, a.Replica+1)
		case publish:
			line = fmt.Sprintf("publish what is in the outbox, by replica %d", a.Replica+1)
		case advance:
			line = "an hour passes"
		}
		if a.Fault != nil {
			if at, ok := reached[i]; ok {
				line += fmt.Sprintf(": %s at step %d, %s", a.Fault.Kind, a.Fault.Step, at)
			} else {
				line += fmt.Sprintf(": %s at step %d, which it does not reach", a.Fault.Kind, a.Fault.Step)
			}
		}
		lines = append(lines, fmt.Sprintf("  %d. %s", i+1, line))
	}
	return strings.Join(append(lines, "  then everything that is not settled is delivered again until it is, and once more"), "\n")
}
