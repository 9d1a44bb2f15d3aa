package natsbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/adapters/broker"
)

const (
	// slowestReconnect bounds the pause between attempts to reach a server.
	slowestReconnect = 5 * time.Second
	// slowestEmbedded is shorter: the next server starts on this machine.
	slowestEmbedded = 200 * time.Millisecond
)

// Factory makes the broker "nats": JetStream on servers that run somewhere else.
func Factory() broker.Factory {
	return broker.Factory{
		Name:         "nats",
		Capabilities: broker.Capabilities{Ordering: broker.OrderByKey, OrderedBatch: true, DeliveryCount: true, DedupeWindow: dedupeWindow, Durable: true},
		Open:         openExternal,
		Check: func(decode func(any) error) error {
			_, err := decodeExternal(decode)
			return err
		},
	}
}

// dialed lets the application make the connections, where it wants to.
func dialed(opts broker.Options) nats.Option {
	return func(o *nats.Options) error {
		if opts.Dial != nil {
			o.CustomDialer = dialFunc(opts.Dial)
		}
		return nil
	}
}

// dialFunc is a nats.CustomDialer.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (d dialFunc) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return d(ctx, network, address)
}

func decodeExternal(decode func(any) error) (Config, error) {
	cfg := defaultConfig()
	if err := decode(&cfg); err != nil {
		return cfg, err
	}
	return cfg, cfg.validate()
}

func openExternal(ctx context.Context, decode func(any) error, opts broker.Options) (broker.Broker, error) {
	cfg, err := decodeExternal(decode)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	where, err := cfg.servers()
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	access, err := cfg.accessOptions(where)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	l, err := connect(ctx, where.list(), cfg.api(), slowestReconnect, opts.Logger, append(access, nats.Name(opts.ClientName), dialed(opts))...)
	if err != nil {
		return nil, fmt.Errorf("nats: %s: %w", where.list(), cfg.explain(err, where))
	}
	b := newBroker("nats", cfg, opts, l)
	b.capabilities = cfg.capabilities(cfg.Replicas >= 3 && cfg.Topology == topologyDeclare, b.maxPayload, l.nc.MaxPayload())
	if err := l.ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("nats: %w; the server must run with JetStream, and the account must have it", err), b.Close())
	}
	return b, nil
}

// capabilities are what the configuration promises on a server that takes messages of serverMax bytes.
func (c *Config) capabilities(durable bool, maxPayload int, serverMax int64) broker.Capabilities {
	caps := broker.Capabilities{
		Ordering:          broker.OrderByKey,
		OrderedBatch:      true,
		LongestRedelivery: c.MaxAge,
		RedeliveryReason:  "the stream's max_age",
		DeliveryCount:     true,
		DedupeWindow:      dedupeWindow,
		Durable:           durable,
	}
	if c.MaxAge == 0 {
		caps.RedeliveryReason = "the stream keeps messages without a limit of age"
	} else {
		caps.Caveats = append(caps.Caveats, fmt.Sprintf("a message that nobody has consumed after %s is removed by the stream's max_age", c.MaxAge))
	}
	if c.Topology != topologyDeclare {
		caps.LongestRedelivery = 0
		caps.RedeliveryReason = "the streams are configured elsewhere"
	}
	if !durable {
		caps.Caveats = append(caps.Caveats, "with fewer than 3 replicas a confirmed message may be lost with its machine, unless the server runs with sync_interval: always")
	}
	if serverMax < int64(maxPayload)+headerRoom {
		caps.Caveats = append(caps.Caveats, fmt.Sprintf("the server's max_payload of %d bytes is too small for the largest messages with their headers (%d bytes); larger ones are set aside in the outbox", serverMax, maxPayload+headerRoom))
	}
	return caps
}
