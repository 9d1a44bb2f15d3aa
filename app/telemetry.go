package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

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
	endpoint, err := tracesURL(cfg.Telemetry.OTLPEndpoint)
	if err != nil {
		return nil, nil, cfg.Problem("telemetry.otlp_endpoint", "%s", err)
	}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(endpoint)}
	authorization, err := cfg.Telemetry.Authorization().Read()
	if err != nil {
		return nil, nil, cfg.Problem("telemetry.otlp_authorization", "%s", err)
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

// tracesURL adds the path that collectors take traces at, where the endpoint names the collector alone.
func tracesURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return "", errors.New("is not a URL such as http://localhost:4318") // without the text, which may have a password
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}
