package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
)

// Remove deletes the topic and the groups' offsets; it waits until the groups have no members any more, or ctx ends. No part of an application calls it: it is for trials, which make topics of their own.
func (b *Broker) Remove(ctx context.Context, topic string, groups []broker.Subscription) error {
	return b.within(ctx, func() error {
		admin, err := sarama.NewClusterAdminFromClient(b.client)
		if err != nil {
			return err
		}
		var errs []error
		for _, group := range groups {
			if err := removeGroup(ctx, admin, b.conf.physicalGroup(group.Group)); err != nil {
				errs = append(errs, fmt.Errorf("kafka: delete group %s: %w", group.Group, err))
			}
		}
		if err := admin.DeleteTopic(b.conf.physicalTopic(topic)); err != nil {
			errs = append(errs, fmt.Errorf("kafka: delete topic %s: %w", topic, err))
		}
		return errors.Join(errs...)
	})
}

// removeGroup tries again while somebody is in the group: a member that was killed is in it until its session is over.
func removeGroup(ctx context.Context, admin sarama.ClusterAdmin, name string) error {
	for {
		err := admin.DeleteConsumerGroup(name)
		switch {
		case errors.Is(err, sarama.ErrGroupIDNotFound):
			return nil
		case !errors.Is(err, sarama.ErrNonEmptyGroup):
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(250 * time.Millisecond):
		}
	}
}
