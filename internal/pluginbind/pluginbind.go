// Package pluginbind makes of a plugin's handlers what the engine runs: the plugin contract and the engine know nothing of each other.
package pluginbind

import (
	"context"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// Transactional adapts a binding's transactional handler, or its transform as one.
func Transactional(b handlers.Binding) idempotency.Handler {
	h := b.Handler
	if b.Transform != nil {
		h = b.Transform.Handler()
	}
	return func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		return h(ctx, tx, msg)
	}
}

// External adapts an external handler, with the policy that decides about calls whose outcome is not known.
func External(e handlers.External, policy handlers.UnknownPolicy) *idempotency.External {
	ext := &idempotency.External{
		Unknown: idempotency.UnknownPolicy(policy), Window: e.Window,
		Call: func(ctx context.Context, msg *message.Message, scope, key string) (any, error) {
			return e.Call(ctx, msg, handlers.NewKey(scope, key))
		},
	}
	if e.Record != nil {
		ext.Record = func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, result json.RawMessage) error {
			return e.Record(ctx, tx, msg, result)
		}
	}
	if e.Probe != nil {
		ext.Probe = func(ctx context.Context, msg *message.Message, scope, key string) (any, bool, error) {
			return e.Probe(ctx, msg, handlers.NewKey(scope, key))
		}
	}
	return ext
}
