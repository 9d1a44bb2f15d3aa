package outbox

import "time"

// Cause is why records were not published, from a closed set: it is fit for a metric's label.
type Cause string

// Causes of a failure.
const (
	// CauseUnavailable: the broker could not be reached. Retried for ever, no attempt counted.
	CauseUnavailable Cause = "unavailable"
	// CauseUnroutable: the broker had nowhere to put the message. Retried for ever, no attempt counted.
	CauseUnroutable Cause = "unroutable"
	// CauseRefused: any other error of the publisher. Counted; set aside after MaxAttempts.
	CauseRefused Cause = "refused"
	// CauseContract: the message breaks the message contract. Set aside at once.
	CauseContract Cause = "contract"
	// CauseUnpublishable: the publisher says that no retry mends it. Set aside at once.
	CauseUnpublishable Cause = "unpublishable"
)

// Causes lists every Cause, for metrics that want all their series from the start.
func Causes() []Cause {
	return []Cause{CauseUnavailable, CauseUnroutable, CauseRefused, CauseContract, CauseUnpublishable}
}

// Observer is told what the relay does. Every function may be nil. They are called
// from several goroutines at once and must return quickly.
type Observer struct {
	// Published is called with the number of records that the broker confirmed and routed.
	Published func(n int)
	// Failed is called for records that were not published, also for those that are then set aside.
	Failed func(n int, cause Cause)
	// Aside is called for records that were set aside.
	Aside func(n int, cause Cause)
	// Copies is called with the number of records that are published but could not be marked: they go out again.
	Copies func(n int)
	// Lag is called for each batch with the age of its oldest record when it was confirmed (store's clock
	// against this process's clock; never negative).
	Lag func(age time.Duration)
	// Lanes is called with the number of lanes that this relay holds, when it changes.
	Lanes func(n int)
	// Status is called with the outbox's state from time to time, see RelayConfig.StatusEvery.
	Status func(Status)
}

func (o Observer) published(n int) {
	if o.Published != nil && n > 0 {
		o.Published(n)
	}
}

func (o Observer) failed(n int, cause Cause) {
	if o.Failed != nil && n > 0 {
		o.Failed(n, cause)
	}
}

func (o Observer) aside(n int, cause Cause) {
	if o.Aside != nil && n > 0 {
		o.Aside(n, cause)
	}
}

func (o Observer) copies(n int) {
	if o.Copies != nil && n > 0 {
		o.Copies(n)
	}
}

func (o Observer) lag(age time.Duration) {
	if o.Lag != nil {
		o.Lag(max(age, 0))
	}
}

func (o Observer) lanes(n int) {
	if o.Lanes != nil {
		o.Lanes(n)
	}
}

func (o Observer) status(s Status) {
	if o.Status != nil {
		o.Status(s)
	}
}
