package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/keystore/elsewhere"
	"github.com/oncemill/oncemill/middleware/parking"
)

// Config is what an Engine needs.
type Config struct {
	Binding Binding
	Keys    keystore.Store
	Parking parking.Store
	// Elsewhere, where set, keeps the leases of an external handler, and hints of completed keys for every handler. Keys stays the truth.
	Elsewhere keystore.Elsewhere
	// Gate is shared by all engines of a process. Nil gives the engine one of its own.
	Gate *Gate
	// Owner names this process in the store, for people.
	Owner  string
	Logger *slog.Logger
	// Observe, where set, gets every event. It is called concurrently and must not block.
	Observe func(Event)
	// Inject, where set, adds tracing headers to outgoing messages.
	Inject func(ctx context.Context, metadata message.Metadata)
	// OnDuplicate, where set, is told of a message that was completed before, with the stored result.
	OnDuplicate func(ctx context.Context, msg *message.Message, record keystore.Record)
	// Woken, where set, is called after a row was parked.
	Woken func()
	// Fault breaks steps, for tests. Nil in production.
	Fault faultpoint.Hook
}

// Engine runs one binding. It is safe for concurrent use.
type Engine struct {
	binding Binding
	keys    keystore.Store
	hints   *elsewhere.Hints // nil where keys are in the database alone
	parking parking.Store
	gate    *Gate
	owner   string
	log     *slog.Logger
	inject  func(context.Context, message.Metadata)
	onDup   func(context.Context, *message.Message, keystore.Record)
	wake    func()
	fault   faultpoint.Hook
	events  func(Event)
	handler atomic.Pointer[Handler] // the binding's, or a router's; nil before the router has given it

	slots    chan struct{}
	single   chan struct{}   // one message after a conflict at a time: together they would meet again and again
	stopping context.Context // nothing new begins, no retry waits any more
	stop     context.CancelCauseFunc
	aborted  context.Context // what runs is cut off
	abort    context.CancelCauseFunc
	door     sync.Mutex     // guards closed and entering
	closed   bool           // nobody enters any more
	inside   sync.WaitGroup // messages in the engine
}

// New makes an engine; it starts nothing.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Binding.validate(); err != nil {
		return nil, err
	}
	if cfg.Binding.Resend && cfg.Elsewhere != nil {
		return nil, errors.New("idempotency: binding " + cfg.Binding.Scope + ": Resend needs the keys in the database alone")
	}
	if cfg.Keys == nil || cfg.Parking == nil {
		return nil, errors.New("idempotency: Keys and Parking are required")
	}
	e := &Engine{
		binding: cfg.Binding.withDefaults(), keys: cfg.Keys, parking: cfg.Parking, gate: cfg.Gate, owner: cfg.Owner,
		log: cfg.Logger, inject: cfg.Inject, onDup: cfg.OnDuplicate, wake: cfg.Woken, fault: cfg.Fault, events: cfg.Observe,
	}
	if cfg.Binding.Handler != nil {
		e.handler.Store(&cfg.Binding.Handler)
	}
	if e.gate == nil {
		e.gate = &Gate{}
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.binding.Key == nil {
		e.binding.Key = envelope.MetadataKey(envelope.KeyHeader)
	}
	if e.binding.Fingerprint == nil {
		print, err := envelope.ParseFingerprint("")
		if err != nil {
			return nil, err
		}
		e.binding.Fingerprint = print
	}
	if cfg.Elsewhere != nil {
		e.keepElsewhere(cfg.Elsewhere)
	}
	e.slots, e.single = make(chan struct{}, e.binding.Concurrency), make(chan struct{}, 1)
	e.stopping, e.stop = context.WithCancelCause(context.Background())
	e.aborted, e.abort = context.WithCancelCause(context.Background())
	return e, nil
}

// Process takes one delivered message through the engine. It returns nil when the message can be acked: its effect, its dead
// letter or its parked copy is durable, or it was a duplicate. An error means that the message goes back to its
// broker (nack); that happens only when the engine stops or the delivery was taken away.
func (e *Engine) Process(msg *message.Message) error {
	if !e.enter() {
		return errHandBack
	}
	defer e.inside.Done()
	wait, cancel := joined(msg.Context(), e.stopping)
	defer cancel()
	j, violation := e.open(msg)
	e.observe(Event{Kind: EventReceived, Scope: e.binding.Scope, Key: j.id.Key})
	if err := e.ready(wait); err != nil {
		return e.handBack(j, err)
	}
	return e.finish(wait, j, violation)
}

// RunParked takes a leased row through the engine; the row is settled in the store: removed with its effect, postponed, or turned into a
// dead letter. The error says that it was not, because the engine stops or the store does not answer; it is parking.ErrLeaseLost
// when the row is somebody else's by now.
func (e *Engine) RunParked(ctx context.Context, row parking.Leased) error {
	if !e.enter() {
		return errHandBack
	}
	defer e.inside.Done()
	wait, cancel := joined(ctx, e.stopping)
	defer cancel()
	if err := e.ready(wait); err != nil {
		return err
	}
	j, violation := e.openParked(row)
	return e.finish(wait, j, violation)
}

// ready waits for the message's turn, and refuses it while the router has not given the handler.
func (e *Engine) ready(wait context.Context) error {
	if e.binding.External == nil && e.handler.Load() == nil {
		return errNoHandler
	}
	return awaitTurn(wait)
}

// enter counts a message in, unless the engine has stopped.
func (e *Engine) enter() bool {
	e.door.Lock()
	defer e.door.Unlock()
	if e.closed {
		return false
	}
	e.inside.Add(1)
	return true
}

// finish drives a job to its end and answers for the broker.
func (e *Engine) finish(wait context.Context, j *job, violation error) error {
	run, cancel := joined(context.WithoutCancel(wait), e.aborted)
	defer cancel()
	run = e.fault.About(run, faultpoint.Subject{Scope: j.id.Scope, Key: j.id.Key, Message: j.msg})
	err := e.fault.At(run, faultpoint.Received)
	if err == nil && violation != nil {
		f := e.classify(violation)
		e.logFailure(run, j, f)
		err = e.bury(run, wait, j, f)
	} else if err == nil && !e.recalled(run, j) {
		err = e.drive(run, wait, j)
	}
	if err == nil {
		err = e.fault.At(run, faultpoint.BeforeAck)
	}
	if err != nil {
		return e.handBack(j, err)
	}
	return nil
}

func (e *Engine) handBack(j *job, why error) error {
	if j.parked != nil && errors.Is(why, parking.ErrLeaseLost) {
		e.observe(Event{Kind: EventLeaseLost, Scope: j.id.Scope, Key: j.id.Key})
		return why
	}
	e.observe(Event{Kind: EventHandedBack, Scope: j.id.Scope, Key: j.id.Key})
	return errHandBack
}

// drive attempts a job until it is settled. run is alive until the engine aborts; wait ends as soon as it stops.
func (e *Engine) drive(run, wait context.Context, j *job) error {
	var p patience
	for {
		err := e.attempt(run, wait, j, &p)
		if err == nil {
			return nil
		}
		next, done, back := e.settle(run, wait, j, &p, err)
		if done || back != nil {
			return back
		}
		if !pause(wait, next) {
			return errHandBack
		}
	}
}

// attempt gives the job a slot and the gate's admission, and runs it once.
func (e *Engine) attempt(run, wait context.Context, j *job, p *patience) error {
	if p.hasContended() && e.binding.External == nil {
		if !take(wait, e.single) {
			return errHandBack
		}
		defer func() { <-e.single }()
	}
	if !take(wait, e.slots) {
		return errHandBack
	}
	defer func() { <-e.slots }()
	if e.binding.External != nil {
		return e.attemptExternal(run, wait, j)
	}
	suspect, err := e.stillSuspect(run, j)
	if err != nil {
		return err
	}
	leave, err := e.gate.Enter(wait, suspect)
	if err != nil {
		return errHandBack
	}
	defer leave()
	if suspect {
		absolve, err := e.accuse(run, j)
		defer absolve()
		if err != nil {
			return err
		}
	}
	return e.attemptTransactional(run, j)
}

// take takes a place, and reports false when ctx ended first.
func take(ctx context.Context, places chan<- struct{}) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// stillSuspect reports whether a suspect's key is not completed yet: a duplicate runs nothing and kills nobody.
func (e *Engine) stillSuspect(ctx context.Context, j *job) (bool, error) {
	if !j.suspect || j.id.Key == "" {
		return j.suspect, nil
	}
	records, err := e.keys.Peek(ctx, []keystore.ID{j.id})
	if err != nil {
		return false, inStore(err, "look at a suspect's key")
	}
	return records[0].State != keystore.Completed, nil
}

// accuse counts a suspect before it runs. absolve takes the count back: this process lived to see the end.
func (e *Engine) accuse(ctx context.Context, j *job) (absolve func(), err error) {
	times, err := e.keys.Suspect(ctx, j.attemptID())
	switch {
	case errors.Is(err, keystore.ErrOutcomeUnknown): // it may be counted
		return func() { e.absolve(ctx, j) }, inStore(err, "count a suspect")
	case err != nil:
		return func() {}, inStore(err, "count a suspect")
	case times > e.binding.CrashLimit:
		return func() {}, errCrashed
	}
	return func() {
		j.suspect = false
		e.absolve(ctx, j)
	}, nil
}

func (e *Engine) absolve(ctx context.Context, j *job) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	if err := e.keys.Absolve(ctx, j.attemptID()); err != nil {
		e.log.WarnContext(ctx, "a suspect's count could not be taken back", "scope", j.id.Scope, "err", err)
	}
}

// joined returns a context with the values of ctx that ends with ctx or with other.
func joined(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { unhook(); cancel(nil) }
}

// Stop lets nothing new begin: messages that wait for their turn, a slot or a retry are handed back, those whose handler runs
// finish. It returns at once; Wait waits.
func (e *Engine) Stop() {
	e.door.Lock()
	e.closed = true
	e.door.Unlock()
	e.stop(errHandBack)
}

// Wait waits, after Stop, until every message has left the engine. When ctx ends before, running handlers are
// cut off (their contexts end, their transactions roll back) and ctx's error is returned.
func (e *Engine) Wait(ctx context.Context) error {
	if e.gone(ctx, &e.inside) {
		return nil
	}
	e.abort(errHandBack)
	e.inside.Wait()
	return ctx.Err()
}

// gone reports whether the group is empty before ctx ends.
func (e *Engine) gone(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *Engine) observe(event Event) {
	if e.events != nil {
		e.events(event)
	}
}

func (e *Engine) woken() {
	if e.wake != nil {
		e.wake()
	}
}

func (e *Engine) logFailure(ctx context.Context, j *job, f failure) {
	level := slog.LevelWarn
	if f.class == stopping || f.class == busy || f.class == behind || f.class == contention || f.class == lost {
		level = slog.LevelDebug
	}
	e.log.Log(ctx, level, "message not handled", "scope", j.id.Scope, "message_uuid", j.msg.UUID,
		"class", string(f.class), "reason", f.reason, "attempt", j.attempts+1, "err", f.text())
	if panicked := (*panicError)(nil); errors.As(f.err, &panicked) {
		e.log.Log(ctx, level, "where the handler panicked", "scope", j.id.Scope, "message_uuid", j.msg.UUID, "stack", string(panicked.stack))
	}
}
