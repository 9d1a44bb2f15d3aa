package idempotency

import "context"

// FaultPoint names a step of the engine at which a test may break it.
type FaultPoint string

// The closed list of fault points, in the order of a message's way.
const (
	FaultReceived        FaultPoint = "received"
	FaultBeforeClaim     FaultPoint = "before-claim"
	FaultAfterClaim      FaultPoint = "after-claim"
	FaultBeforeStatement FaultPoint = "before-statement"
	FaultAfterStatement  FaultPoint = "after-statement"
	FaultBeforeCommit    FaultPoint = "before-commit"
	FaultCommitted       FaultPoint = "committed" // the answer of the commit can be lost here
	FaultBeforeAck       FaultPoint = "before-ack"
	FaultLeaseAcquired   FaultPoint = "lease-acquired"
	FaultBeforeRenewal   FaultPoint = "before-renewal"
	FaultCalled          FaultPoint = "called"
	FaultBeforeParking   FaultPoint = "before-parking"
	FaultParked          FaultPoint = "parked"
	FaultBeforeBurial    FaultPoint = "before-dead-letter"
	FaultBuried          FaultPoint = "dead-letter-written"
)

// Fault is called at each fault point; its error is what the step would have returned. It may also panic, block or end the process.
// Nil in production: only a test sets it, and nothing but code can.
type Fault func(ctx context.Context, at FaultPoint) error

func (f Fault) at(ctx context.Context, point FaultPoint) error {
	if f == nil {
		return nil
	}
	return f(ctx, point)
}
