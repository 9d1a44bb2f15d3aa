package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// EmbeddedFactory makes the broker "embedded": a JetStream server in the process, on disk,
// with nothing to install.
func EmbeddedFactory() broker.Factory {
	return broker.Factory{
		Name:         "embedded",
		Capabilities: broker.Capabilities{Ordering: broker.OrderByKey, OrderedBatch: true, DeliveryCount: true, DedupeWindow: dedupeWindow, Durable: true},
		Open:         openEmbedded,
		Check: func(decode func(any) error) error {
			_, err := decodeEmbedded(decode)
			return err
		},
	}
}

func decodeEmbedded(decode func(any) error) (EmbeddedConfig, error) {
	cfg := defaultEmbeddedConfig()
	if err := decode(&cfg); err != nil {
		return cfg, err
	}
	return cfg, cfg.validate()
}

func openEmbedded(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
	cfg, err := decodeEmbedded(decode)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	if opts.DataDir == "" {
		return nil, errors.New("embedded broker: it needs a data folder")
	}
	if opts.MaxPayload <= 0 {
		opts.MaxPayload = envelope.DefaultMaxPayload
	}
	n, err := startNode(opts.DataDir, cfg.Port, opts.MaxPayload, opts.Logger)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	// The address is the dialer's matter; the name stands in logs only.
	l, err := connect(ctx, "nats://embedded:4222", (&Config{}).api(), slowestEmbedded, opts.Logger,
		nats.Name(opts.ClientName), nats.SetCustomDialer(addressDialer{dir: opts.DataDir, dial: opts.Dial}), nats.SkipHostLookup(), nats.IgnoreDiscoveredServers(),
		nats.TokenHandler(func() string { return readAddress(opts.DataDir).Token }))
	if err != nil {
		return nil, fmt.Errorf("embedded broker in %s: %w", opts.DataDir, errors.Join(err, n.failure(), n.close()))
	}
	b := newBroker("embedded", cfg.broker(), opts, l)
	b.after = n.close
	b.topology.atomic = true
	b.marks = marksIn(filepath.Join(opts.DataDir, "nats-marks"))
	b.capabilities = b.cfg.capabilities(true, b.maxPayload, l.nc.MaxPayload()) // each write is flushed before it is confirmed
	return b, nil
}

// marksIn opens consumers' marks in a folder.
func marksIn(dir string) func(identity, durable string) (*mark, error) {
	return func(identity, durable string) (*mark, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		return openMark(filepath.Join(dir, strings.ReplaceAll(identity, "/", ".")+"."+durable))
	}
}
