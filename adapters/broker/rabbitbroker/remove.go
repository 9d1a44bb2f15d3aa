package rabbitbroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/adapters/broker"
)

// Remove deletes the topic's exchange and the groups' queues, with their messages. No part of an application calls it: it is for trials, which make topics
// of their own.
func (b *rabbit) Remove(ctx context.Context, topic string, groups []broker.Subscription) error {
	conn, _, err := b.publish.get(ctx)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("rabbitmq: open a channel: %w", err)
	}
	defer ch.Close()
	var errs []error
	for _, group := range groups {
		if _, err := ch.QueueDelete(b.cfg.queue(topic, group.Group), false, false, false); err != nil {
			errs = append(errs, fmt.Errorf("rabbitmq: delete queue %q: %w", b.cfg.queue(topic, group.Group), err))
		}
	}
	if exchange := b.cfg.place(topic).exchange; exchange != "" {
		if err := ch.ExchangeDelete(exchange, false, false); err != nil {
			errs = append(errs, fmt.Errorf("rabbitmq: delete exchange %q: %w", exchange, err))
		}
	}
	return errors.Join(errs...)
}
