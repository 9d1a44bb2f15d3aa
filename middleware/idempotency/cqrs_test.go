package idempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
)

type shipOrder struct{ Order string }

type orderShipped struct{ Order string }

type orderLost struct{ Order string }

// insert is the effect of a CQRS handler, whose context is that of the message.
func insert(ctx context.Context, payload string) error {
	tx, ok := idempotency.TxFrom(ctx)
	if !ok {
		return errors.New("no transaction")
	}
	_, err := tx.ExecContext(ctx, tx.Rebind(`INSERT INTO effects (k, v) VALUES (?, ?)`), tx.Key(), payload)
	return err
}

// Watermill's CQRS component on a plain router: a command that is sent twice has one effect, the event that its handler
// publishes leaves with that effect, and the handlers of an event group share their message's transaction.
func TestCQRS(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		channel := newChannel(t)
		marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
		fromHandlers, err := cqrs.NewEventBusWithConfig(idempotency.TxPublisher{}, cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
			Marshaler:            marshaler,
		})
		require.NoError(t, err)
		var runs atomic.Int64
		runRouter(t, func(r *message.Router) {
			r.AddMiddleware(h.newRouter(t, idempotency.Binding{}).Middleware)
			commands, err := cqrs.NewCommandProcessorWithConfig(r, cqrs.CommandProcessorConfig{
				GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
				SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return channel, nil
				},
				Marshaler: marshaler,
			})
			require.NoError(t, err)
			require.NoError(t, commands.AddHandlers(cqrs.NewCommandHandler("ship", func(ctx context.Context, c *shipOrder) error {
				runs.Add(1)
				if err := insert(ctx, c.Order); err != nil {
					return err
				}
				return fromHandlers.Publish(ctx, &orderShipped{c.Order})
			})))
			events, err := cqrs.NewEventGroupProcessorWithConfig(r, cqrs.EventGroupProcessorConfig{
				GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
				SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return channel, nil
				},
				AckOnUnknownEvent: true, Marshaler: marshaler,
			})
			require.NoError(t, err)
			require.NoError(t, events.AddHandlersGroup("books",
				cqrs.NewGroupEventHandler(func(ctx context.Context, e *orderShipped) error { return insert(ctx, "first "+e.Order) }),
				cqrs.NewGroupEventHandler(func(ctx context.Context, e *orderShipped) error { return insert(ctx, "second "+e.Order) }),
			))
		})

		sender, err := cqrs.NewCommandBusWithConfig(channel, cqrs.CommandBusConfig{
			GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
			Marshaler:            marshaler,
			OnSend: func(p cqrs.CommandBusOnSendParams) error {
				p.Message.Metadata.Set(envelope.KeyHeader, "ship-"+p.Command.(*shipOrder).Order)
				return nil
			},
		})
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, sender.Send(t.Context(), &shipOrder{"17"}))
		}
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, 1, h.effectsOf(t, "ship-17"))
		rows, err := h.Outbox().List(t.Context(), false, 10)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.Equal(t, envelope.DeriveUUID("svc/ship", "ship-17", 0), rows[0].Key)

		// The relay publishes it, perhaps twice.
		for range 2 {
			event := message.NewMessage(rows[0].UUID, rows[0].Payload)
			for name, value := range rows[0].Metadata {
				event.Metadata.Set(name, value)
			}
			require.NoError(t, channel.Publish("events", event))
		}
		require.Equal(t, 2, h.effectsOf(t, rows[0].Key), "once for each handler of the group")

		unknown, err := marshaler.Marshal(&orderLost{"17"})
		require.NoError(t, err)
		unknown.Metadata.Set(envelope.KeyHeader, "lost-17")
		require.NoError(t, channel.Publish("events", unknown))
		require.Empty(t, h.rows(t))

		require.ErrorIs(t, fromHandlers.Publish(t.Context(), &orderShipped{"18"}), idempotency.ErrOutsideHandler)
	})
}
