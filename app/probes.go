package app

import (
	"context"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// probes is what a trial puts into an application to watch it and to break it. The zero value, which is every other application's, does
// nothing; no setting, flag or environment variable changes it.
type probes struct {
	engine, relay faultpoint.Hook
	observe       func(idempotency.Event)
	subscriber    func(scope string, sub message.Subscriber) message.Subscriber
	publisher     func(outbox.Publisher) outbox.Publisher
	// lease, where not 0, is in place of the default of external calls and of the relay's lanes.
	lease time.Duration

	toDatabase, toBroker, toKeys func(ctx context.Context, network, address string) (net.Conn, error)
}

func (p probes) observing(metrics func(idempotency.Event)) func(idempotency.Event) {
	if p.observe == nil {
		return metrics
	}
	return func(e idempotency.Event) {
		metrics(e)
		p.observe(e)
	}
}

func (p probes) watching(scope string, sub message.Subscriber) message.Subscriber {
	if p.subscriber == nil {
		return sub
	}
	return p.subscriber(scope, sub)
}

func (p probes) publishing(pub outbox.Publisher) outbox.Publisher {
	if p.publisher == nil {
		return pub
	}
	return p.publisher(pub)
}
