// Package history holds what happened in a trial and judges it.
//
// A history is a list of events: what producers published, what replicas received, ran, acknowledged and published in turn, which faults fired, and
// at its end what the database and the mail server hold. [Check] reads it and returns a verdict. It does no I/O and knows no clock, so that the verdict
// on one history is always the same, also on one that was written to a file.
package history

import "time"

// Kind says what an event is.
type Kind string

// Kinds of events. The comment names the fields that they have besides At.
const (
	// Planned is the first event: Plan.
	Planned Kind = "plan"
	// Sent: a producer begins to publish. Topic, Key, UUID, Print, and What is one of Original, Copy, Rival, Forgery.
	Sent Kind = "sent"
	// Confirmed: the broker has confirmed it; the fields of Sent.
	Confirmed Kind = "confirmed"
	// Delivered, Acked, Nacked: Replica, Scope, Key, UUID.
	Delivered Kind = "delivered"
	Acked     Kind = "acked"
	Nacked    Kind = "nacked"
	// Engine is an event of a binding's engine: Replica, Scope, Key, Reason; What is its kind.
	Engine Kind = "engine"
	// Step: a message came by a fault point. Replica, Scope, Key, Point.
	Step Kind = "step"
	// Fault: a fault fired. Replica, Scope (empty for the relay), Key, Point; What is its kind.
	Fault Kind = "fault"
	// Emitted: the relay published a message, and the broker confirmed it. Replica, Topic, Key, UUID, Print.
	Emitted Kind = "emitted"
	// Process: What became of a Replica: started, ready, killed, fell (by a fault), stopped, died (by itself).
	Process Kind = "process"
	// Disturbed: something around was disturbed. What says what; Replica where it is one replica's.
	Disturbed Kind = "disturbed"

	// What is there at the end:

	// Letter: a mail server took a letter. Scope, Key; UUID is its Message-ID. Without a Scope it belongs to no key.
	Letter Kind = "letter"
	// KeyState: Scope, Key; What is the state of the key.
	KeyState Kind = "key"
	// Effect: Scope, Key; What names the effect, Count how often it is there; Outputs are the messages that it has to publish.
	Effect Kind = "effect"
	// Parked: Scope, Key, UUID, Print, Reason; What is waiting, dead or in_doubt.
	Parked Kind = "parked"
	// Left: a message is in the outbox. Topic, Key, UUID.
	Left Kind = "left"
	// Checked: a plugin's own check of the database; What names the plugin, Reason is its error, if any.
	Checked Kind = "checked"
	// Ended is the last event: everything that is there has been read.
	Ended Kind = "end"
	// Sum: Count must be Want; What says of what. Scope and Key where it is one key's.
	Sum Kind = "sum"
)

// What a published message is.
const (
	Original = ""
	Copy     = "copy"    // the same message again
	Rival    = "rival"   // the same message again, while it is handled
	Forgery  = "forgery" // another payload under a key that was used
)

// Event is one event of a history.
type Event struct {
	At      time.Time `json:"at,omitzero"`
	Kind    Kind      `json:"kind"`
	Replica string    `json:"replica,omitempty"`
	Scope   string    `json:"scope,omitempty"`
	Topic   string    `json:"topic,omitempty"`
	Key     string    `json:"key,omitempty"`
	UUID    string    `json:"uuid,omitempty"`
	Print   string    `json:"print,omitempty"`
	Point   string    `json:"point,omitempty"`
	What    string    `json:"what,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Count   int64     `json:"count,omitempty"`
	Want    int64     `json:"want,omitempty"`
	Outputs []Output  `json:"outputs,omitempty"`
	Plan    *Plan     `json:"plan,omitempty"`
}

// Output is a message that an effect has to publish.
type Output struct {
	Topic string `json:"topic"`
	Key   string `json:"key"`
	UUID  string `json:"uuid"`
}

// Plan is what a history is judged by.
type Plan struct {
	Seed     uint64    `json:"seed"`
	Broker   string    `json:"broker"`
	Database string    `json:"database"`
	Keys     string    `json:"keys"`
	Bindings []Binding `json:"bindings"`
	// Open reports that effects do not say what has to be published: whatever the relay publishes has to be handled by who receives it.
	Open bool `json:"open,omitempty"`
}

// Binding is what one binding promises.
type Binding struct {
	Name  string `json:"name"`
	Scope string `json:"scope"`
	Topic string `json:"topic"`
	// Effects is how often each effect must be there for each key.
	Effects map[string]int64 `json:"effects"`
	// External reports a handler with an outside effect.
	External bool `json:"external,omitempty"`
	// Letters reports that this effect is a letter for each key.
	Letters bool `json:"letters,omitempty"`
	// Policy decides about outside calls whose outcome is not known: park, retry or probe; empty where there are none.
	Policy string `json:"policy,omitempty"`
}
