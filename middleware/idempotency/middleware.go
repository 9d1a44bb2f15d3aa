package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/parking"
)

type txKey struct{}

// TxFrom returns the transaction of the message that is being handled. The bool is false outside
// the middleware. Effects that go through it happen exactly once.
func TxFrom(ctx context.Context) (*Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*Tx)
	return tx, ok
}

// Middleware is the engine as a Watermill router middleware. A transactional handler is the router's own
// HandlerFunc: it takes its transaction with TxFrom(msg.Context()), stores a result with SetResult, and the messages that it
// returns go to the outbox under the router's publish topic, never to the router's publisher. With an External binding the HandlerFunc is not called.
//
// The engine must be the innermost middleware: retry and dead letters are its own. It serves one handler of the router; for a whole
// router see Router.
func (e *Engine) Middleware(h message.HandlerFunc) message.HandlerFunc {
	if e.binding.External == nil && e.binding.Handler == nil {
		adopted := adopt(h, e.binding.Publish)
		if !e.handler.CompareAndSwap(nil, &adopted) {
			return func(*message.Message) ([]*message.Message, error) { return nil, errTwoHandlers }
		}
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, e.Process(msg)
	}
}

var (
	errTwoHandlers = errors.New("idempotency: one Engine cannot serve two handlers, they would share their keys: use NewRouter")
	errNoHandler   = errors.New("idempotency: the engine has no handler yet: set Binding.Handler, or run the router first")
)

// adopt makes a Handler of a Watermill HandlerFunc.
func adopt(h message.HandlerFunc, publish string) Handler {
	return func(ctx context.Context, tx *Tx, msg *message.Message) (any, error) {
		msg.SetContext(context.WithValue(ctx, txKey{}, tx))
		produced, err := h(msg)
		if err != nil || len(produced) == 0 {
			return nil, err
		}
		topic := cmp.Or(publish, message.PublishTopicFromCtx(ctx))
		if topic == "" {
			return nil, errors.New("the handler returns messages, but there is no publish topic: use AddHandler, and Binding.Publish for rows from parking")
		}
		for _, p := range produced {
			if err := tx.Publish(ctx, topic, p); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

// Router makes a middleware for a whole router: each handler gets an engine with a scope of its own, made from
// base by the handler's name. It is for routers without the rest of Oncemill; see Engine.Middleware.
//
// Each key's effect happens exactly once with any subscriber. What else holds depends on the subscriber. With Watermill's own:
// messages of one ordering key may overtake each other, unless Lanes decorates the subscriber and that delivers many at a time in order; a
// message that kills its process is not known as a suspect, and comes again at once; a nack, which only a stop
// or an outage of the store causes, is redelivered without a wait; a waiting message holds its subscriber's next one where that has one in flight.
type Router struct {
	base    Config
	mu      sync.Mutex
	made    map[string]*Engine // by the handler's name
	stopped bool
}

// NewRouter returns a router middleware. base.Binding.Scope is the service's name and begins every scope.
func NewRouter(base Config) (*Router, error) {
	switch b := base.Binding; {
	case b.Scope == "":
		return nil, errors.New("idempotency: Binding.Scope, the service's name, is required")
	case b.Handler != nil || b.External != nil:
		return nil, errors.New("idempotency: the handlers of a Router are those of the Watermill router; for others use Engine.Middleware")
	}
	probe := base
	probe.Binding.Scope = base.Binding.Scope + "/probe"
	if _, err := New(probe); err != nil {
		return nil, err
	}
	if base.Gate == nil {
		base.Gate = &Gate{}
	}
	return &Router{base: base, made: map[string]*Engine{}}, nil
}

// Middleware is for message.Router.AddMiddleware.
func (r *Router) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		e, err := r.engine(msg.Context(), h)
		if err != nil {
			return nil, err
		}
		return nil, e.Process(msg)
	}
}

// engine returns the engine of the handler that ctx names.
func (r *Router) engine(ctx context.Context, h message.HandlerFunc) (*Engine, error) {
	name := message.HandlerNameFromCtx(ctx)
	if name == "" {
		return nil, errors.New("idempotency: the message did not come through a router's handler")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.made[name]; ok {
		return e, nil
	}
	if r.stopped {
		return nil, errHandBack
	}
	cfg := r.base
	cfg.Binding.Scope += "/" + name
	cfg.Binding.Topic = message.SubscribeTopicFromCtx(ctx)
	cfg.Binding.Publish = message.PublishTopicFromCtx(ctx)
	cfg.Binding.Handler = adopt(h, cfg.Binding.Publish)
	e, err := New(cfg)
	if err != nil {
		return nil, err
	}
	r.made[name] = e
	return e, nil
}

// RunParked is Engine.RunParked of the handler whose scope the row has, for a parking.Feeder. The rows of a
// handler wait until its first message has come through the router since the start.
func (r *Router) RunParked(ctx context.Context, row parking.Leased) error {
	r.mu.Lock()
	e := r.made[strings.TrimPrefix(row.Scope, r.base.Binding.Scope+"/")]
	r.mu.Unlock()
	if e == nil || e.binding.Scope != row.Scope {
		return fmt.Errorf("idempotency: no message of scope %s has come through the router yet", row.Scope)
	}
	return e.RunParked(ctx, row)
}

// Engines returns the engines made so far, by the handlers' names.
func (r *Router) Engines() map[string]*Engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	engines := make(map[string]*Engine, len(r.made))
	for name, e := range r.made {
		engines[name] = e
	}
	return engines
}

// Stop stops every engine and waits for them as Engine.Wait does.
func (r *Router) Stop(ctx context.Context) error {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	engines := r.Engines()
	for _, e := range engines {
		e.Stop()
	}
	var errs []error
	for _, e := range engines {
		errs = append(errs, e.Wait(ctx))
	}
	return errors.Join(errs...)
}
