package handlertest_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
)

// A plain HandlerFunc has the same promise: it takes its transaction from the message, and what it returns leaves with that.
func TestWatermillHandlerFunc(t *testing.T) {
	k := handlertest.New(t, plugin(func(b *handlers.Bindings) {
		b.On("orders.placed", handlers.Watermill("orders.taken", func(msg *message.Message) ([]*message.Message, error) {
			msg.Ack() // reaches nobody
			tx, ok := handlers.TxFrom(msg.Context())
			if !ok {
				return nil, errors.New("no transaction")
			}
			if _, err := tx.ExecContext(msg.Context(), `INSERT INTO seen (id) VALUES (?)`, string(msg.Payload)); err != nil {
				return nil, err
			}
			return message.Messages{message.NewMessage("", msg.Payload)}, nil
		}))
	}), nil)
	k.FailEverywhere("orders.placed", "k", []byte("1"), func(k *handlertest.Kit) {
		k.WantRow(`SELECT count(*) FROM seen`, 1)
		k.WantPublished("orders.taken", 1)
	})
}

// Without a topic, returned messages are an error and not lost.
func TestWatermillHandlerFuncWithoutATopic(t *testing.T) {
	k := handlertest.New(t, plugin(func(b *handlers.Bindings) {
		b.On("orders.placed", handlers.Watermill("", message.PassthroughHandler))
	}), nil)
	if outcome := k.Deliver("orders.placed", "k", []byte("1")); outcome != handlertest.Parked {
		t.Errorf("the message is %s", outcome)
	}
}
