package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

// ShipOrder is a command: JSON with the header name, "ShipOrder", and the header idempotency-key.
type ShipOrder struct {
	Order string `json:"order"`
	Items int    `json:"items"`
}

// OrderShipped is the event that tells of it.
type OrderShipped struct {
	Order string `json:"order"`
	Items int    `json:"items"`
}

// add is an effect. It goes through the transaction of the message's key.
func add(ctx context.Context, name string, n int) error {
	tx, ok := idempotency.TxFrom(ctx)
	if !ok {
		return errors.New("the middleware is missing")
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO counts (name, n) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET n = counts.n + excluded.n`, name, n)
	return err
}

// addHandlers adds the handler "ship" of the commands, and the group "books" of two handlers of the events.
func addHandlers(ctx context.Context, router *message.Router, b broker.Broker, service string) error {
	commandTopic, eventTopic := service+".commands", service+".events"
	subscribe := func(topic, group string) (message.Subscriber, error) {
		sub := broker.Subscription{Topic: topic, Group: service + "." + group}
		if err := b.Declare(ctx, topic, []broker.Subscription{sub}); err != nil {
			return nil, err
		}
		return b.Subscriber(sub)
	}
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

	// The bus publishes through the outbox of the transaction in which the handler runs.
	bus, err := cqrs.NewEventBusWithConfig(idempotency.TxPublisher{}, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return eventTopic, nil },
		Marshaler:            marshaler,
	})
	if err != nil {
		return err
	}
	commands, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return commandTopic, nil },
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscribe(commandTopic, p.HandlerName)
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	events, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return eventTopic, nil },
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return subscribe(eventTopic, p.EventGroupName)
		},
		AckOnUnknownEvent: true, Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return errors.Join(
		commands.AddHandlers(cqrs.NewCommandHandler("ship", func(ctx context.Context, c *ShipOrder) error {
			if err := add(ctx, "shipped", c.Items); err != nil {
				return err
			}
			return bus.Publish(ctx, &OrderShipped{Order: c.Order, Items: c.Items})
		})),
		events.AddHandlersGroup("books",
			cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderShipped) error { return add(ctx, "invoiced", e.Items) }),
			cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderShipped) error { return add(ctx, "points", e.Items) }),
		),
	)
}
