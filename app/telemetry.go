package app

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.26.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/oncemill/oncemill/config"
)

// newTracerProvider returns the provider that exports spans by OTLP over HTTP to the configured endpoint, and what flushes and ends it. Without
// an endpoint spans are not recorded; trace headers of messages are passed on all the same.
func newTracerProvider(cfg *config.Config) (trace.TracerProvider, func(context.Context) error, error) {
	if cfg.Telemetry.OTLPEndpoint == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(cfg.Telemetry.OTLPEndpoint)}
	authorization, err := cfg.Telemetry.Authorization().Read()
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry.otlp_authorization: %w", err)
	}
	if authorization != "" {
		options = append(options, otlptracehttp.WithHeaders(map[string]string{"Authorization": authorization}))
	}
	exporter, err := otlptracehttp.New(context.Background(), options...)
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry.otlp_endpoint: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Telemetry.SampleRatio))),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(cfg.Service))),
	)
	return provider, provider.Shutdown, nil
}
