package dynamotx

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/handlers"
)

// Plan decides what a message does: it reads, and returns what is to be written. It has no effect itself, and runs again, with fresh reads,
// where other writers were faster. An error means that nothing is written; its kind decides what follows (see handlers.Permanent,
// handlers.RetryAfter). key is the message's identity, the same on every attempt.
type Plan func(ctx context.Context, read Reader, msg *message.Message, key handlers.Key) (Writes, error)

// Writes is everything that one message does. It commits at once, together with the message's key, or not at all.
type Writes struct {
	// Items are writes and checks of items of different keys. Each that relies on what was read has a condition that says so. Together with the outgoing
	// messages they are up to 99; a message counts once, and once more for each 256 KiB of a payload of more than 8 KiB.
	Items []types.TransactWriteItem
	// Result is kept as JSON with the key; nil for none. At most 64 KiB.
	Result any
	// Outgoing are published once the writes have committed, those of one ordering key in their order.
	Outgoing []Outgoing
}

// JSON makes a Plan from a function over a typed payload, as handlers.JSON does of a handler.
func JSON[P any](plan func(ctx context.Context, read Reader, payload P, key handlers.Key) (Writes, error)) Plan {
	return func(ctx context.Context, read Reader, msg *message.Message, key handlers.Key) (Writes, error) {
		payload, err := handlers.Decode[P](msg)
		if err != nil {
			return Writes{}, err
		}
		return plan(ctx, read, payload, key)
	}
}

// Handler is a handler whose writes, key, result and outgoing messages commit in one transaction of DynamoDB.
type Handler struct {
	DB   *DB
	Plan Plan
	// MaxPayload is Bindings.MaxPayload: what is larger is refused while nothing has happened. 0 is the contract's 1 MiB.
	MaxPayload int
}

const fence = "one DynamoDB transaction commits the writes, the key, the result and the outgoing messages, on the condition that the key is new; " +
	"a relay publishes the messages from there, and removes what the broker has confirmed"

// External returns the handler in the form that a plugin declares. Its calls are repeated until their outcome is known, for as long as the
// keys table remembers it.
func (h Handler) External() handlers.External {
	return handlers.External{
		Call: h.call, Probe: h.probe,
		Unknown: handlers.UnknownRetry, Window: h.DB.cfg.Retention, Fence: fence, Outbox: h.DB.source,
	}
}

// call commits the message's transaction, or finds out that it has committed before.
func (h Handler) call(ctx context.Context, msg *message.Message, key handlers.Key) (any, error) {
	client, err := h.DB.ready(ctx)
	if err != nil {
		return nil, err
	}
	c := &commit{Handler: h, client: client, msg: msg, key: key, id: key.String()}
	done, err := c.run(ctx)
	if err != nil {
		return nil, err
	}
	return done.value(), nil
}

// probe asks the keys table. An answer of no is only the state of the moment, but whoever calls then is fenced by the key.
func (h Handler) probe(ctx context.Context, _ *message.Message, key handlers.Key) (any, bool, error) {
	client, err := h.DB.ready(ctx)
	if err != nil {
		return nil, false, err
	}
	done, known, err := reader{client}.lookUp(ctx, h.DB.keys(), key.String())
	return done.value(), known, err
}
