package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/oncemill/oncemill/middleware/envelope"
)

func (c *cli) publishCommand() *cobra.Command {
	var key, data, file, ordering string
	var headers []string
	cmd := &cobra.Command{
		Use: "publish TOPIC --key KEY --data JSON", Short: "Publish one message", Args: cobra.ExactArgs(1),
		Long: "Publish one message and wait until the broker has it. Publishing it again with the same key is harmless: its effect happens once.",
		Example: `  oncemill publish payments.requested --key order-123 --data '{"payment_id":"p1","from":"alice","to":"bob","amount":"12.50","currency":"EUR"}'
  oncemill publish payments.requested --key order-124 --file payment.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := envelope.ValidateTopic(args[0]); err != nil {
				return withCode(ExitUsage, err)
			}
			body, err := c.body(data, file)
			if err != nil {
				return withCode(ExitUsage, err)
			}
			msg, err := newMessage(key, ordering, headers, body)
			if err != nil {
				return withCode(ExitUsage, err)
			}
			return c.withApp(cmd.Context(), (*App).openBroker, func(ctx context.Context, a *App) error {
				return c.publish(ctx, a, args[0], msg)
			})
		},
	}
	cmd.Flags().StringVarP(&key, "key", "k", "", "idempotency key (a new one where none is given)")
	cmd.Flags().StringVarP(&data, "data", "d", "", "payload; \"-\" reads standard input")
	cmd.Flags().StringVar(&file, "file", "", "file with the payload")
	cmd.Flags().StringVar(&ordering, "ordering-key", "", "messages that share it are handled in order")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "further header as name=value; may be repeated")
	return cmd
}

func (c *cli) body(data, file string) ([]byte, error) {
	switch {
	case data != "" && file != "":
		return nil, errors.New("give --data or --file, not both")
	case file != "":
		return os.ReadFile(file)
	case data == "-":
		return io.ReadAll(c.in)
	case data == "":
		return nil, errors.New("give the payload with --data or --file")
	}
	return []byte(data), nil
}

func newMessage(key, ordering string, headers []string, body []byte) (*message.Message, error) {
	msg := message.NewMessage(envelope.NewUUID(), body)
	if key == "" {
		key = envelope.NewUUID()
	}
	if err := envelope.ValidateKey(key); err != nil {
		return nil, err
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return nil, fmt.Errorf("--header %q is not name=value", h)
		}
		msg.Metadata.Set(name, value)
	}
	msg.Metadata.Set(envelope.KeyHeader, key)
	if ordering != "" {
		msg.Metadata.Set(envelope.OrderingKeyHeader, ordering)
	}
	return msg, nil
}

func (c *cli) publish(ctx context.Context, a *App, topic string, msg *message.Message) error {
	if _, known := a.topology()[topic]; !known {
		fmt.Fprintf(c.errs, "note: no binding of this configuration consumes or publishes %s; they know %s\n", topic, strings.Join(slices.Sorted(maps.Keys(a.topology())), ", "))
	}
	if err := a.broker.Declare(ctx, topic, a.topology()[topic]); err != nil {
		return fmt.Errorf("declare topic %s: %w", topic, err)
	}
	if err := errors.Join(a.broker.Publisher().PublishBatch(ctx, topic, []*message.Message{msg})...); err != nil {
		if violation := (*envelope.Violation)(nil); errors.As(err, &violation) {
			return withCode(ExitUsage, err)
		}
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	_, err := fmt.Fprintf(c.out, "published %s with key %s\n", msg.UUID, oneLine(msg.Metadata.Get(envelope.KeyHeader)))
	return err
}
