package kafkabroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

// brokerMaxMessage is message.max.bytes of a cluster that leaves its default; a topic that is made here gets its own
// limit only where it needs more.
const brokerMaxMessage = 1048588

// Declare makes the topic where the topology is "declare" and it is missing; an existing one stays as it is. With "verify" it
// returns an error that says what is missing. Groups need nothing: they begin at the oldest record.
func (b *Broker) Declare(ctx context.Context, topic string, _ []broker.Subscription) error {
	if b.isClosed() {
		return ErrClosed
	}
	if err := envelope.ValidateTopic(topic); err != nil {
		return fmt.Errorf("kafka: declaring a topic: %w", err)
	}
	physical := b.conf.physicalTopic(topic)
	if b.conf.Topology != TopologyOff {
		if err := b.ensureTopic(ctx, topicPlan{name: physical}); err != nil {
			return err
		}
	}
	b.learn(ctx, physical)
	return nil
}

// topicPlan is how a topic is made where it is missing.
type topicPlan struct {
	name       string             // physical
	partitions int32              // 0: as configured
	entries    map[string]*string // configuration besides the adapter's own
}

// ensureTopic returns nil once the topic exists and has leaders. It makes the topic where the configuration lets it.
func (b *Broker) ensureTopic(ctx context.Context, plan topicPlan) error {
	plan.partitions = cmp.Or(plan.partitions, b.conf.Partitions)
	err := b.refresh(ctx, plan.name)
	switch {
	case err == nil:
		return nil
	case !isMissingTopic(err):
		return fmt.Errorf("kafka: looking up topic %s: %w", plan.name, err)
	case b.conf.Topology != TopologyDeclare:
		return fmt.Errorf(`kafka: topic %s does not exist; create it, or set topology to "declare": %w`, plan.name, err)
	}
	if err := b.createTopic(ctx, plan); err != nil {
		return fmt.Errorf("kafka: creating topic %s with %d partitions: %w", plan.name, plan.partitions, err)
	}
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, b.refresh(ctx, plan.name)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(50*time.Millisecond)), backoff.WithMaxElapsedTime(30*time.Second))
	if err != nil {
		return fmt.Errorf("kafka: waiting for the leaders of new topic %s: %w", plan.name, err)
	}
	b.log.Info("kafka topic created", slog.String("topic", plan.name), slog.Int("partitions", int(plan.partitions)))
	return nil
}

// refresh reads the topic's metadata; it is a missing topic where the cluster does not know it.
func (b *Broker) refresh(ctx context.Context, physical string) error {
	return b.within(ctx, func() error { return b.client.RefreshMetadata(physical) })
}

func (b *Broker) createTopic(ctx context.Context, plan topicPlan) error {
	entries := map[string]*string{}
	maps.Copy(entries, plan.entries)
	if n := b.conf.MinInsyncReplicas; n > 0 {
		entries["min.insync.replicas"] = new(strconv.Itoa(n))
	}
	if n := b.conf.maxMessageBytes(b.opts); n > brokerMaxMessage {
		entries["max.message.bytes"] = new(strconv.Itoa(n))
	}
	detail := &sarama.TopicDetail{NumPartitions: plan.partitions, ReplicationFactor: b.conf.Replication, ConfigEntries: entries}
	return b.within(ctx, func() error {
		admin, err := sarama.NewClusterAdminFromClient(b.client)
		if err != nil {
			return err
		}
		err = admin.CreateTopic(plan.name, detail, false)
		if errors.Is(err, sarama.ErrTopicAlreadyExists) { // another replica was faster
			return nil
		}
		return err
	})
}

// learn reads what capabilities depend on. What cannot be read is unknown, not an error: a program may have no right to read configurations.
func (b *Broker) learn(ctx context.Context, physical string) {
	facts, err := call(ctx, b, func() (topicFact, error) { return describeTopic(b.client, physical) })
	if err != nil {
		b.log.Warn("kafka topic configuration cannot be read; its retention counts as unlimited",
			slog.String("topic", physical), slog.Any("err", err))
	}
	b.facts.set(physical, facts)
}

func describeTopic(client sarama.Client, physical string) (topicFact, error) {
	var fact topicFact
	partitions, err := client.Partitions(physical)
	if err != nil {
		return fact, err
	}
	for _, p := range partitions {
		replicas, err := client.Replicas(physical, p)
		if err != nil {
			return fact, err
		}
		if fact.replicas == 0 || len(replicas) < fact.replicas {
			fact.replicas = len(replicas)
		}
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return fact, err
	}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{{
		Type: sarama.TopicResource, Name: physical,
		ConfigNames: []string{"retention.ms", "segment.ms", "cleanup.policy", "min.insync.replicas"},
	}}, sarama.DescribeConfigsOptions{})
	if err != nil {
		return fact, err
	}
	if len(results) != 1 {
		return fact, sarama.ErrIncompleteResponse
	}
	if code := results[0].ErrorCode; code != sarama.ErrNoError {
		return fact, code
	}
	return fact, fact.read(results[0].Configs)
}
