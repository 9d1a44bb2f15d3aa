// Package middleware is the chain that a message passes in Watermill's router. What is here works in
// any Watermill router, without the rest of Oncemill.
package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

// Chain returns the router's middleware for one binding, outermost first. This is the one place where the order is written:
//
//  1. Tracing, so that everything below, also a duplicate's skip, is a span of the producer's trace.
//  2. The idempotency engine, innermost: claim, handler, effect and outgoing messages are one transaction, and
//     retry, parking and dead letters decide outside it. Nothing may stand between it and the handler that
//     could run the handler a second time or hide its error.
func Chain(tracing *Tracing, engine *idempotency.Engine) []message.HandlerMiddleware {
	return []message.HandlerMiddleware{
		tracing.Middleware,
		engine.Middleware,
	}
}
