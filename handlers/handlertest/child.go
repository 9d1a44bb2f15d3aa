package handlertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// childOrders is the variable of the environment by which a test tells itself, in a process of its own, what to do there.
const childOrders = "ONCEMILL_HANDLERTEST_CHILD"

// orders are what a child does: one action on a database, with a fault that kills it.
type orders struct {
	Test   string // the name of the test
	Line   string // of the call of Prove in its source
	Where  address
	Dir    string // for files
	Action action
	Told   string // a file into which the child writes the step at which it ends, and what it saw before
}

// told is what a child says before it ends.
type told struct {
	Point   faultpoint.Point `json:",omitempty"` // where it is about to be killed
	Acked   bool             `json:",omitempty"` // the broker has the ack already
	Outcome Outcome          `json:",omitempty"` // of a delivery that ended without being killed
	Error   string           `json:",omitempty"`
}

// killed does an action in a process that is killed in it.
func (tr *trial) killed(i int, a action) {
	k := tr.k
	k.t.Helper()
	o := orders{Test: k.test, Line: k.line, Where: k.place.address(), Dir: k.dir, Action: a, Told: filepath.Join(k.dir, "told")}
	said, err := o.run(k)
	if err != nil {
		k.t.Fatalf("handlertest: a process that was to be killed: %v", err)
	}
	switch {
	case said.Point != "":
		tr.reached[i] = said.Point
	case said.Error != "":
		k.t.Fatalf("handlertest: in a process that was to be killed: %s", said.Error)
	}
	switch {
	case a.Do == publish:
		k.pass(relayLease + time.Second)
	case said.Point != "" && !said.Acked, said.Outcome == HandedBack:
		tr.pending = append(tr.pending, a.Message)
	}
}

// run starts the child and returns what it said when it is gone.
func (o orders) run(k *Kit) (told, error) {
	defer os.Remove(o.Told)
	text, err := json.Marshal(o)
	if err != nil {
		return told{}, fmt.Errorf("orders: %w", err)
	}
	ctx, cancel := k.context()
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern(o.Test), "-test.count=1", "-test.timeout="+(2*patience).String())
	// What the child leaves behind when it is killed is in a folder that goes with the trial's.
	cmd.Env = append(os.Environ(), childOrders+"="+string(text), "TMPDIR="+o.Dir)
	out, failed := cmd.CombinedOutput()
	var said told
	if data, err := os.ReadFile(o.Told); err == nil {
		err = json.Unmarshal(data, &said)
		return said, err
	}
	return said, fmt.Errorf("it said nothing (%w):\n%s", failed, out)
}

// childOf does what this process was started for, when it has come to the call of Prove that it was started by, and then ends.
func (k *Kit) childOf(p *proof) {
	k.t.Helper()
	k.test, k.line = k.t.Name(), k.callSite()
	o := ordersOf(k.t)
	if o.Test != k.test || o.Line != k.line {
		return
	}
	said := told{}
	if failed := try(k.t, func(r *recorder) { said = o.obey(k, p, r) }); failed != "" {
		said = told{Error: failed}
	}
	o.tell(said)
	os.Exit(0)
}

// ordersOf returns what this process was started for, and nothing where nobody started it so.
func ordersOf(t testing.TB) orders {
	t.Helper()
	var o orders
	if text := os.Getenv(childOrders); text != "" {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatalf("handlertest: orders: %v", err)
		}
	}
	return o
}

// callSite names the line of the test that called Prove, or one of its relatives.
func (k *Kit) callSite() string {
	for depth := 1; ; depth++ {
		pc, file, line, ok := runtime.Caller(depth)
		if !ok {
			return ""
		}
		if !strings.Contains(runtime.FuncForPC(pc).Name(), "handlertest.(*Kit)") {
			return fmt.Sprintf("%s:%d", file, line)
		}
	}
}

// obey does the action, and is killed in it as a rule.
func (o orders) obey(k *Kit, p *proof, r *recorder) told {
	c := *k
	c.t, c.dir, c.place = r, o.Dir, k.place.at(o.Where)
	c.open()
	replica := c.replicas()[o.Action.Replica]
	var msg *message.Message
	n := 0
	hook := func(_ context.Context, at step) error {
		if at.point == faultpoint.BeforeRenewal {
			return nil
		}
		if n++; n == o.Action.Fault.Step && at.can(Kill) {
			o.tell(told{Point: at.point, Acked: msg != nil && acked(msg)})
			die()
		}
		return nil
	}
	if o.Action.Do == publish {
		if err := c.relay(replica, hook); err != nil {
			return told{Error: err.Error()}
		}
		return told{Outcome: Completed}
	}
	m := p.messages[o.Action.Message]
	msg = c.message(m.Key, m.Payload)
	replica.breakAt(hook)
	return told{Outcome: c.deliver(replica, m.To, msg, false)}
}

// tell writes what the parent reads when this process is gone.
func (o orders) tell(said told) {
	data, err := json.Marshal(said)
	if err == nil {
		err = os.WriteFile(o.Told, data, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "handlertest: telling the parent:", err)
	}
}
