package idempotency

import "time"

// EventKind names what happened to a message; it is a closed list, fit for a metric's label.
type EventKind string

// Kinds of events.
const (
	EventReceived    EventKind = "received"     // a message entered the engine
	EventCompleted   EventKind = "completed"    // its effect is committed; Duration since it entered
	EventDuplicate   EventKind = "duplicate"    // it was completed before
	EventRejected    EventKind = "rejected"     // it failed before, its dead letter exists
	EventWaiting     EventKind = "waiting"      // a parked copy of it exists
	EventRetried     EventKind = "retried"      // it is tried again in the process
	EventContention  EventKind = "contention"   // a conflict in the store, tried again
	EventUnavailable EventKind = "unavailable"  // the store did not answer
	EventParked      EventKind = "parked"       // it waits for a later retry
	EventDead        EventKind = "dead_letter"  // it became a dead letter
	EventInDoubt     EventKind = "in_doubt"     // its outside effect is not known
	EventTakeover    EventKind = "takeover"     // an earlier owner's lease was over
	EventLeaseLost   EventKind = "lease_lost"   // this process lost its lease
	EventHandedBack  EventKind = "handed_back"  // it went back to the broker
	EventAbandoned   EventKind = "abandoned"    // a handler overran its timeout and still runs
	EventAbandonedOK EventKind = "abandoned_ok" // such a handler has returned
	EventKeyless     EventKind = "keyless"      // it runs without deduplication
)

// Event is one step of one message, for metrics.
type Event struct {
	Kind  EventKind
	Scope string
	// Key is the message's, where the step is one message's and it is known. It is never a label of a metric.
	Key string
	// Reason is a constant code, for dead letters, retries and parked messages.
	Reason   string
	Duration time.Duration
}
