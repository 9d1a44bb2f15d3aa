package middleware

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Tracing makes a span of each message and carries the trace through the message headers (W3C trace context
// and baggage). A span never holds a payload or a key.
type Tracing struct {
	tracer trace.Tracer
	fields propagation.TextMapPropagator
	system string
}

// NewTracing returns a Tracing whose spans come from provider; system names the broker.
func NewTracing(provider trace.TracerProvider, system string) *Tracing {
	return &Tracing{
		tracer: provider.Tracer("github.com/oncemill/oncemill"),
		fields: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
		system: system,
	}
}

// Middleware continues the producer's trace with a span around the message.
func (t *Tracing) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, span := t.Start(msg.Context(), msg, message.SubscribeTopicFromCtx(msg.Context()), message.HandlerNameFromCtx(msg.Context()))
		defer span.End()
		msg.SetContext(ctx)
		produced, err := h(msg)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return produced, err
	}
}

// Start begins the span of a message, also of one that comes from parking.
func (t *Tracing) Start(ctx context.Context, msg *message.Message, topic, handler string) (context.Context, trace.Span) {
	ctx = t.fields.Extract(ctx, propagation.MapCarrier(msg.Metadata))
	return t.tracer.Start(ctx, "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("messaging.system", t.system),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", topic),
		attribute.String("messaging.message.id", msg.UUID),
		attribute.String("oncemill.handler", handler),
	))
}

// Inject writes the trace of ctx into the headers of an outgoing message; headers that the author set are kept.
func (t *Tracing) Inject(ctx context.Context, metadata message.Metadata) {
	carrier := propagation.MapCarrier{}
	t.fields.Inject(ctx, carrier)
	for name, value := range carrier {
		if _, given := metadata[name]; !given {
			metadata[name] = value
		}
	}
}
