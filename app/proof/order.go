// Package proof is a trial of a running application: replicas in processes of their own, faults at each step of a message's way, and a verdict
// from the history of all that. It is what "oncemill prove" does.
//
// A Worker lives in each replica and takes orders from the Director in the parent process, as JSON lines on its standard input: no flag, setting or environment variable of
// another command reaches it. What it sees it reports on its standard output.
package proof

import (
	"time"

	"github.com/oncemill/oncemill/app/proof/history"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// Fault is a way to break a step.
type Fault string

// Kinds of faults.
const (
	// FaultError: the step returns an error.
	FaultError Fault = "error"
	// FaultPanic: the step panics. Within a handler that is a failed attempt; elsewhere it ends the process.
	FaultPanic Fault = "panic"
	// FaultDeadline: the step hangs until the handler's deadline, and then fails; the relay only hangs.
	FaultDeadline Fault = "deadline"
	// FaultCut: all connections of this replica to the database break at that moment; at the steps at which it is the broker's turn, those to the broker.
	// Where there are none, as to SQLite, the step returns an error as of a broken one.
	FaultCut Fault = "cut"
	// FaultKill: the process kills itself (SIGKILL).
	FaultKill Fault = "kill"
	// FaultRival: the same message is published again, and the step waits until a replica has received it.
	FaultRival Fault = "rival"

	// hold makes the step wait until the key's lease is being renewed.
	hold Fault = "hold"
)

// Faults returns all kinds of faults.
func Faults() []Fault {
	return []Fault{FaultError, FaultPanic, FaultDeadline, FaultCut, FaultKill, FaultRival}
}

// Arm makes a fault fire: at the Nth time that a message of the scope, or the relay where the scope is empty, comes by the point.
type Arm struct {
	ID    int              `json:"id"`
	Point faultpoint.Point `json:"point"`
	Scope string           `json:"scope,omitempty"`
	Key   string           `json:"key,omitempty"` // empty: any message
	Nth   int              `json:"nth"`
	Times int              `json:"times"` // how often in a row
	Kind  Fault            `json:"kind"`
}

// Order is what a replica is told.
type Order struct {
	Start  *Start `json:"start,omitempty"` // the first order, once
	Arm    []Arm  `json:"arm,omitempty"`
	Disarm []int  `json:"disarm,omitempty"`
	Trace  *bool  `json:"trace,omitempty"`
	// Cut breaks all connections to Line and refuses new ones for the time For.
	Cut *Cut `json:"cut,omitempty"`
	// GoOn ends the wait of the rival of that number.
	GoOn int  `json:"go_on,omitempty"`
	Stop bool `json:"stop,omitempty"`
}

// Start is how a replica is configured.
type Start struct {
	Replica string            `json:"replica"`
	File    string            `json:"file,omitempty"`
	Flags   map[string]string `json:"flags"`
	Lease   time.Duration     `json:"lease"`
	Hang    time.Duration     `json:"hang"`
	// Lines are those of the replica's connections that can be cut.
	Lines []string `json:"lines"`
}

// Lines that can be cut.
const (
	LineDatabase = "database"
	LineBroker   = "broker"
	LineKeys     = "keys"
)

// Cut is a cut of the network.
type Cut struct {
	Line string        `json:"line"`
	For  time.Duration `json:"for"`
}

// Report is what a replica says.
type Report struct {
	Event *history.Event `json:"event,omitempty"`
	// Fired is the number of the arm that has fired; its event comes with it.
	Fired int `json:"fired,omitempty"`
	// Rival asks for the same message once more.
	Rival *Message `json:"rival,omitempty"`
	Ready bool     `json:"ready,omitempty"`
}

// Message is a message as text.
type Message struct {
	Number   int               `json:"number"`
	Scope    string            `json:"scope"`
	Key      string            `json:"key"`
	UUID     string            `json:"uuid"`
	Metadata map[string]string `json:"metadata"`
	Payload  []byte            `json:"payload"`
}
