package natsbroker

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/adapters/broker"
)

// Remove deletes the topic's stream, and so its consumers. No part of an application calls it: it is for trials, which make topics of their own.
func (b *Broker) Remove(ctx context.Context, topic string, _ []broker.Subscription) error {
	stream := b.cfg.place(topic).stream
	if err := b.link.js.DeleteStream(ctx, stream); err != nil {
		return fmt.Errorf("nats: delete stream %s: %w", stream, err)
	}
	return nil
}
