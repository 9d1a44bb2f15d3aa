package kafkabroker

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
)

// Remove deletes the topic and the groups' offsets. No part of an application calls it: it is for trials, which make topics of their own.
func (b *Broker) Remove(ctx context.Context, topic string, groups []broker.Subscription) error {
	return b.within(ctx, func() error {
		admin, err := sarama.NewClusterAdminFromClient(b.client)
		if err != nil {
			return err
		}
		var errs []error
		for _, group := range groups {
			err := admin.DeleteConsumerGroup(b.conf.physicalGroup(group.Group))
			if err != nil && !errors.Is(err, sarama.ErrGroupIDNotFound) {
				errs = append(errs, fmt.Errorf("kafka: delete group %s: %w", group.Group, err))
			}
		}
		if err := admin.DeleteTopic(b.conf.physicalTopic(topic)); err != nil {
			errs = append(errs, fmt.Errorf("kafka: delete topic %s: %w", topic, err))
		}
		return errors.Join(errs...)
	})
}
