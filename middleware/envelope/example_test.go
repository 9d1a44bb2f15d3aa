package envelope_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// A producer that composes the key of each message from what names the operation. The broker has the first sending, but its answer is
// lost: the message goes again, under the same key, and the consumer removes the copy.
func ExampleNewPublisher() {
	broker := &losesFirstAnswer{}
	producer := envelope.NewPublisher(broker, envelope.PublisherOptions{
		Attempts: 5,
		Key: func(_ string, msg *message.Message) (string, error) {
			var order struct {
				ID string `json:"order_id"`
			}
			if err := json.Unmarshal(msg.Payload, &order); err != nil {
				return "", err
			}
			return envelope.Compose("order", order.ID, "creation")
		},
	})
	err := producer.Publish("orders.created", message.NewMessage("", []byte(`{"order_id":"123","total":"9.90"}`)))
	fmt.Println("error:", err)
	// Output:
	// the broker got order-123-creation
	// the broker got order-123-creation
	// error: <nil>
}

// A key is made of the facts that name the operation, in a fixed order.
func ExampleCompose() {
	key, err := envelope.Compose("order", "123", "creation")
	fmt.Println(key, err)

	// An id that was not set must not become a key that unrelated messages share.
	_, err = envelope.Compose("order", "", "creation")
	fmt.Println(err)

	// Wrong: with the number of the attempt in it, each attempt is a message of its own, and has its own effect.
	for attempt := range 2 {
		key, _ = envelope.Compose("order", "123", "creation", fmt.Sprint("attempt", attempt+1))
		fmt.Println(key)
	}
	// Output:
	// order-123-creation <nil>
	// message contract: key-empty: part 2 of the key is empty or only white space
	// order-123-creation-attempt1
	// order-123-creation-attempt2
}

// losesFirstAnswer is any Watermill publisher on a bad network.
type losesFirstAnswer struct{ sent int }

func (l *losesFirstAnswer) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		fmt.Println("the broker got", msg.Metadata.Get(envelope.KeyHeader))
	}
	if l.sent++; l.sent == 1 {
		return errors.New("connection lost")
	}
	return nil
}

func (l *losesFirstAnswer) Close() error { return nil }
