package idempotency_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/idempotency"
)

// source is a subscriber whose deliveries the test makes.
type source struct{ c chan *message.Message }

func (s *source) Subscribe(context.Context, string) (<-chan *message.Message, error) { return s.c, nil }
func (s *source) Close() error                                                       { close(s.c); return nil }

// subscription is what a router reads from decorated lanes.
type subscription struct {
	*source
	out <-chan *message.Message
}

// subscribe decorates a source with lanes. It is closed at the end of the test, when every message must have been acked or nacked.
func subscribe(t *testing.T, lanes *idempotency.Lanes) *subscription {
	t.Helper()
	s := &subscription{source: &source{make(chan *message.Message)}}
	sub := lanes.Subscriber(s.source)
	var err error
	s.out, err = sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	return s
}

// pass sends a message through the lanes and returns it with its ticket.
func (s *subscription) pass(msg *message.Message) *message.Message {
	s.c <- msg
	return <-s.out
}

// ticket gives messages their tickets, in order.
func ticket(t *testing.T, lanes *idempotency.Lanes, msgs ...*message.Message) []*message.Message {
	t.Helper()
	s := subscribe(t, lanes)
	ticketed := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		ticketed[i] = s.pass(msg)
	}
	return ticketed
}
