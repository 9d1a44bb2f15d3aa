package kafkabroker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
)

const (
	// leaveTimeout is what a drained member gets to end its assignment.
	leaveTimeout = lastCommitTimeout + 2*time.Second
	// logPause is the time between two logged errors of the library.
	logPause = 5 * time.Second
)

// membership is a place in a consumer group, of whatever works there.
type membership struct {
	b        *Broker
	topic    string // logical
	physical string
	group    string // consumer group
	log      *slog.Logger
	buffer   int // records of a partition that wait for its owner; 0 is the adapter's default
}

func newMembership(b *Broker, sub broker.Subscription) *membership {
	return &membership{
		b: b, topic: sub.Topic, physical: b.conf.physicalTopic(sub.Topic), group: b.conf.physicalGroup(sub.Group),
		log: b.log.With(slog.String("scope", sub.Group)),
	}
}

// join joins the group and stays in it, over rebalances, until ctx ends or something fails. It leaves the group before it returns.
func (m *membership) join(ctx context.Context, handler func() sarama.ConsumerGroupHandler) error {
	if err := m.b.Declare(ctx, m.topic, nil); err != nil {
		return err
	}
	conf, err := m.b.conf.groupConfig(m.b.opts)
	if err != nil {
		return err
	}
	if m.buffer > 0 {
		conf.ChannelBufferSize = m.buffer
	}
	client, err := sarama.NewClient(m.b.conf.Brokers, conf)
	if err != nil {
		return m.b.conf.unreachable(err)
	}
	defer func() { _ = client.Close() }()
	group, err := sarama.NewConsumerGroupFromClient(m.group, client)
	if err != nil {
		return fmt.Errorf("kafka: joining group %s: %w", m.group, err)
	}
	var errs sync.WaitGroup
	errs.Go(func() { m.logErrors(group.Errors()) })
	defer errs.Wait()
	left := make(chan struct{})
	errs.Go(func() { forceClose(ctx, left, client) })
	err = m.consume(ctx, group, handler)
	close(left)
	if closeErr := group.Close(); closeErr != nil && err == nil {
		err = fmt.Errorf("kafka: leaving group %s: %w", m.group, closeErr)
	}
	return err
}

func (m *membership) consume(ctx context.Context, group sarama.ConsumerGroup, handler func() sarama.ConsumerGroupHandler) error {
	for ctx.Err() == nil {
		started := time.Now()
		if err := group.Consume(ctx, []string{m.physical}, handler()); err != nil {
			return fmt.Errorf("kafka: consuming %s as group %s: %w", m.physical, m.group, err)
		}
		if time.Since(started) > time.Second {
			continue
		}
		select { // assignments that end at once must not follow each other at full speed
		case <-time.After(firstRetry):
		case <-ctx.Done():
		}
	}
	return nil
}

// forceClose ends the connections of a member that does not come back: joining a group waits for the slowest member.
func forceClose(ctx context.Context, left <-chan struct{}, client sarama.Client) {
	select {
	case <-left:
		return
	case <-ctx.Done():
	}
	select {
	case <-left:
	case <-time.After(leaveTimeout):
		_ = client.Close()
	}
}

// logErrors logs what the library tells. An outage makes it tell the same of each partition, over and over: one
// line in a while says how many were left out.
func (m *membership) logErrors(errs <-chan error) {
	var last time.Time
	omitted := 0
	for err := range errs {
		if time.Since(last) < logPause {
			omitted++
			continue
		}
		m.log.Warn("kafka consumer", slog.String("topic", m.physical), slog.Int("omitted", omitted), slog.Any("err", err))
		last, omitted = time.Now(), 0
	}
}
