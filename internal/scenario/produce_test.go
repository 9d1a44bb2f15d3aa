package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// event is one message to send.
type event struct {
	topic, key, ordering, body string
	command                    string // the header "name" of Watermill's CQRS component
}

func (e event) message() *message.Message {
	msg := message.NewMessage(envelope.NewUUID(), []byte(e.body))
	if e.key != "" {
		msg.Metadata.Set(envelope.KeyHeader, e.key)
	}
	if e.ordering != "" {
		msg.Metadata.Set(envelope.OrderingKeyHeader, e.ordering)
	}
	if e.command != "" {
		msg.Metadata.Set("name", e.command)
	}
	return msg
}

// send publishes events in their order and insists: a producer that gets no confirmation sends again.
func send(ctx context.Context, b broker.Broker, events []event) error {
	const batch = 50
	for len(events) > 0 {
		part := events[:min(batch, len(events))]
		byTopic := map[string][]*message.Message{}
		for _, e := range part {
			byTopic[e.topic] = append(byTopic[e.topic], e.message())
		}
		for topic, msgs := range byTopic {
			if err := insist(ctx, b, topic, msgs); err != nil {
				return err
			}
		}
		events = events[len(part):]
	}
	return nil
}

func insist(ctx context.Context, b broker.Broker, topic string, msgs []*message.Message) error {
	for {
		err := errors.Join(b.Publisher().PublishBatch(ctx, topic, msgs)...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("publish to %s: %w", topic, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// sendFromSeveral shuffles events over producers that send at the same time, each over its own connection.
func (s *system) sendFromSeveral(producers int, events []event) {
	s.t.Helper()
	rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var group errgroup.Group
	for n := range producers {
		b := s.open()
		part := make([]event, 0, len(events)/producers+1)
		for i := n; i < len(events); i += producers {
			part = append(part, events[i])
		}
		group.Go(func() error {
			defer b.Close()
			return send(ctx, b, part)
		})
	}
	require.NoError(s.t, group.Wait())
}

const accounts = 40

func account(i int) string { return fmt.Sprintf("account-%02d", i) }

// openings opens the accounts.
func openings() []event {
	var events []event
	for i := range accounts {
		events = append(events, event{
			topic: "accounts.opened", key: "open-" + account(i),
			body: fmt.Sprintf(`{"account_id":%q,"currency":"EUR","opening_balance":"1000000.00"}`, account(i)),
		})
	}
	return events
}

// payment is the nth payment: the amounts and accounts are a function of n, so that balances can be checked.
func payment(n int) event {
	from, to := n%accounts, (n*7+3)%accounts
	if from == to {
		to = (to + 1) % accounts
	}
	return event{
		topic: "payments.requested", key: fmt.Sprintf("order-%05d", n),
		body: fmt.Sprintf(`{"payment_id":"pay-%05d","from":%q,"to":%q,"amount":"%d.%02d","currency":"EUR"}`, n, account(from), account(to), n%90+1, n%100),
	}
}

// balances are the balances in cents after n payments, each made once.
func balances(n int) map[string]int64 {
	all := map[string]int64{}
	for i := range accounts {
		all[account(i)] = 100_000_000
	}
	for i := range n {
		from, to := i%accounts, (i*7+3)%accounts
		if from == to {
			to = (to + 1) % accounts
		}
		cents := int64(i%90+1)*100 + int64(i%100)
		all[account(from)] -= cents
		all[account(to)] += cents
	}
	return all
}

// emptyQueues checks that nothing is left for any binding: a new consumer of each group gets no message and is caught up.
func (s *system) emptyQueues(t *testing.T, groups map[string]string) {
	t.Helper()
	for binding, left := range s.drainQueues(t, groups) {
		require.Zero(t, left, "messages in the queue of %s", binding)
	}
}

// drainQueues takes what is left for each binding, and returns how many messages that was.
func (s *system) drainQueues(t *testing.T, groups map[string]string) (left map[string]int) {
	t.Helper()
	b := s.open()
	defer b.Close()
	left = map[string]int{}
	for binding, topic := range groups {
		sub, err := b.Subscriber(broker.Subscription{Topic: topic, Group: s.service + "." + binding})
		require.NoError(t, err)
		messages, err := sub.Subscribe(context.Background(), topic)
		require.NoError(t, err)
		tooLong := time.After(45 * time.Second)
	taking:
		for {
			select {
			case msg := <-messages:
				left[binding]++
				msg.Ack()
			case <-sub.CaughtUp():
				break taking
			case <-tooLong:
				t.Errorf("the queue of %s is not empty after %d messages", binding, left[binding])
				break taking
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		require.NoError(t, sub.Drain(ctx))
		cancel()
	}
	return left
}
