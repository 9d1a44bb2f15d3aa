package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/transact"
)

// FlowConfig is what a Flow needs. Of Config, Keys is only asked to write parked rows and to classify errors; the keys
// are the shards'.
type FlowConfig struct {
	Config
	Transform Transform
	// Trace, where set, begins the span of a message; what it returns ends it.
	Trace func(ctx context.Context, msg *message.Message) (context.Context, func(error))
	// Batch and Span bound a transaction by the number of its messages and the time that their handlers take. Default to 500 and 100ms.
	Batch int
	Span  time.Duration
	// Poll is how often due rows are looked for. Defaults to 1s.
	Poll time.Duration
}

// Flow runs one binding whose handler turns messages into messages, in the transactions of the broker: Work is its part
// for each shard.
//
// # Guarantees
//
// Outputs, keys and the position commit in the broker's transaction. Parked rows and dead letters are in the database, written before that
// commit: after a crash between the two the message comes again and meets a row that is unique, so nothing multiplies. A row
// goes after the commit of its run: after a crash between the two it is run again, and its key says that it is done.
//
// Messages of a shard are handled one after the other, in its order. A message that fails for the moment is tried again for a short while,
// and then parked; its successors of one ordering key queue behind it. Parked rows belong to their shard, whose owner alone runs
// them: their scope is ShardScope.
//
// A message that may have killed a process runs alone and is counted in the database before (Delivery.Redelivered, CrashLimit).
type Flow struct {
	e         *Engine
	transform Transform
	trace     func(context.Context, *message.Message) (context.Context, func(error))
	batch     int
	span      time.Duration
	poll      time.Duration
}

// NewFlow makes a flow; it starts nothing.
func NewFlow(cfg FlowConfig) (*Flow, error) {
	switch {
	case cfg.Transform == nil:
		return nil, errors.New("idempotency: a flow needs a Transform")
	case cfg.Binding.Handler != nil || cfg.Binding.External != nil:
		return nil, errors.New("idempotency: binding " + cfg.Binding.Scope + " has two kinds of handler")
	case cfg.Binding.Resend:
		return nil, errors.New("idempotency: binding " + cfg.Binding.Scope + ": a flow keeps no messages to resend")
	case cfg.Binding.Hold:
		return nil, errors.New("idempotency: binding " + cfg.Binding.Scope + ": a flow cannot hold an ordering key behind a dead letter")
	}
	e, err := New(cfg.Config)
	if err != nil {
		return nil, err
	}
	f := &Flow{e: e, transform: cfg.Transform, trace: cfg.Trace, batch: cfg.Batch, span: cfg.Span, poll: cfg.Poll}
	setDefault(&f.batch, 500)
	setDefault(&f.span, 100*time.Millisecond)
	setDefault(&f.poll, time.Second)
	if f.trace == nil {
		f.trace = func(ctx context.Context, _ *message.Message) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
	return f, nil
}

// ShardScope is the scope of parked rows of one shard.
func ShardScope(scope, shard string) string { return scope + "@" + shard }

// Work handles the messages of a shard until it stops. It is a transact.Work.
func (f *Flow) Work(ctx context.Context, shard transact.Shard) error {
	w := &flowShard{f: f, e: f.e, shard: shard, scope: ShardScope(f.e.binding.Scope, shard.Name()), ctx: ctx}
	var stopWaiting func()
	w.wait, stopWaiting = until(ctx, shard)
	defer stopWaiting()
	if err := w.loadBlocked(); err != nil {
		return w.ending(err)
	}
	for {
		err := w.round()
		if err != nil {
			return w.ending(err)
		}
	}
}

// until returns a context that ends when nothing new should begin.
func until(ctx context.Context, shard transact.Shard) (context.Context, func()) {
	wait, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-shard.Stopping():
			cancel(errHandBack)
		case <-wait.Done():
		}
	}()
	return wait, func() { cancel(nil); <-ended }
}

// ending tells an end from a failure.
func (w *flowShard) ending(err error) error {
	switch {
	case w.ctx.Err() != nil:
		return fmt.Errorf("%w: %w", transact.ErrLost, context.Cause(w.ctx))
	case errors.Is(err, transact.ErrStopping), errors.Is(err, errHandBack): // what is not committed comes again
		return nil
	}
	return err
}

// flowShard is a flow's work on one shard. It is used by one goroutine.
type flowShard struct {
	f     *Flow
	e     *Engine
	shard transact.Shard
	scope string          // of parked rows
	ctx   context.Context // ends when the shard is lost
	wait  context.Context // ends when nothing new should begin

	blocked    map[string]bool // ordering keys of which a parked row waits; some may be too many
	listed     time.Time       // when blocked was read
	nextLook   time.Time       // for due rows
	rowsFailed int
}

// round gathers one batch and commits it.
func (w *flowShard) round() error {
	b := &flowBatch{began: time.Now(), keys: map[string]transact.Entry{}}
	err := w.takeDue(b)
	var ended error
	if err == nil {
		ended, err = w.takeMessages(b)
	}
	if err == nil {
		err = w.commit(b)
	}
	if err != nil {
		w.giveBack(b.rows)
		return err
	}
	return ended
}

// takeMessages handles messages until the batch is full. ended says that there will be no more, and the batch is the last.
func (w *flowShard) takeMessages(b *flowBatch) (ended, err error) {
	patient := w.untilLook()
	for taken := 0; taken < w.f.batch && time.Since(b.began) < w.f.span; taken++ {
		wait := time.Duration(0)
		if b.empty() {
			wait = patient
		}
		msg, err := w.shard.Next(wait)
		if errors.Is(err, transact.ErrStopping) {
			return err, nil
		}
		if err != nil || msg == nil {
			return nil, err
		}
		b.taken = true
		w.e.observe(Event{Kind: EventReceived, Scope: w.e.binding.Scope})
		j, violation := w.e.open(msg)
		if err := w.handle(b, j, violation); err != nil {
			return nil, err
		}
	}
	return nil, nil
}
