package idempotency_test

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

type callFunc func(ctx context.Context, msg *message.Message, scope, key string) (any, error)

func nothing(context.Context, *message.Message, string, string) (any, error) { return "done", nil }

// external is a handler that calls and records one effect.
func external(call callFunc) *idempotency.External {
	return &idempotency.External{
		Call: call,
		Record: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message, _ json.RawMessage) error {
			_, err := effect(ctx, tx, msg)
			return err
		},
	}
}

// provider is the outside world: it has an effect for each call that reaches it, and deduplicates by key where it is asked to.
type provider struct {
	mu    sync.Mutex
	calls map[string]int
}

func (p *provider) call(_ context.Context, _ *message.Message, scope, key string) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[string]int{}
	}
	p.calls[scope+"/"+key]++
	return map[string]string{"receipt": key}, nil
}

// of is how often the provider was called for a key.
func (p *provider) of(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[scope+"/"+key]
}
