package kafkabroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/transact"
)

// keysSuffix makes of a consumer group the topic of its keys: compacted, with a partition for each of the input's.
const keysSuffix = "-keys"

// keyRecord is the value of a record in the topic of keys; the record key is the key's hash. A null value forgets the key.
type keyRecord struct {
	Key         string         `json:"key"`
	State       transact.State `json:"state"`
	Fingerprint string         `json:"fingerprint,omitempty"`
}

// DeclareKeys makes the topic of keys where the topology is "declare", with as many partitions as the input has. One that would lose keys, or
// has too few partitions and cannot get more, is an error.
func (b *Broker) DeclareKeys(ctx context.Context, sub broker.Subscription) error {
	if b.isClosed() {
		return ErrClosed
	}
	physical, keys := b.conf.physicalTopic(sub.Topic), b.conf.physicalGroup(sub.Group)+keysSuffix
	if b.conf.Topology == TopologyOff {
		return nil
	}
	input, err := b.partitions(ctx, physical)
	if err != nil {
		return fmt.Errorf("kafka: looking up topic %s: %w", physical, err)
	}
	if err := b.ensureTopic(ctx, topicPlan{name: keys, partitions: int32(len(input)), entries: keysEntries()}); err != nil {
		return err
	}
	if err := b.growKeys(ctx, keys, len(input)); err != nil {
		return err
	}
	return b.within(ctx, func() error { return checkKeys(b.client, keys) })
}

// keysEntries is how a topic of keys keeps records: the newest of each key, for ever, under the broker's clock.
func keysEntries() map[string]*string {
	return map[string]*string{
		"cleanup.policy":            new("compact"),
		"message.timestamp.type":    new("LogAppendTime"),
		"min.cleanable.dirty.ratio": new("0.2"),
		"segment.bytes":             new("67108864"),
		"segment.ms":                new("3600000"),
	}
}

// growKeys gives the topic of keys the partitions that it lacks.
func (b *Broker) growKeys(ctx context.Context, keys string, want int) error {
	have, err := b.partitions(ctx, keys)
	if err != nil {
		return fmt.Errorf("kafka: looking up topic %s: %w", keys, err)
	}
	if len(have) >= want {
		return nil
	}
	if b.conf.Topology != TopologyDeclare {
		return fmt.Errorf("kafka: topic %s has %d partitions, its input %d: give it as many", keys, len(have), want)
	}
	err = b.within(ctx, func() error {
		admin, err := sarama.NewClusterAdminFromClient(b.client)
		if err != nil {
			return err
		}
		if err := admin.CreatePartitions(keys, int32(want), nil, false); err != nil && !errors.Is(err, sarama.ErrInvalidPartitions) {
			return err // invalid: another replica was faster
		}
		return b.client.RefreshMetadata(keys)
	})
	if err != nil {
		return fmt.Errorf("kafka: giving topic %s %d partitions: %w", keys, want, err)
	}
	return nil
}

// checkKeys refuses a topic that forgets keys by age or size. What may not be read counts as right.
func checkKeys(client sarama.Client, keys string) error {
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{{Type: sarama.TopicResource, Name: keys, ConfigNames: []string{"cleanup.policy"}}}, sarama.DescribeConfigsOptions{})
	if err != nil || len(results) != 1 || results[0].ErrorCode != sarama.ErrNoError {
		return nil
	}
	for _, e := range results[0].Configs {
		if e.Name == "cleanup.policy" && strings.Contains(e.Value, "delete") {
			return fmt.Errorf("kafka: topic %s has cleanup.policy %s and would lose keys: set it to compact", keys, e.Value)
		}
	}
	return nil
}

// Remembers reports whether the topic of the subscription's keys has ever held any.
func (b *Broker) Remembers(ctx context.Context, sub broker.Subscription) (bool, error) {
	keys := b.conf.physicalGroup(sub.Group) + keysSuffix
	ends, err := b.ends(ctx, keys)
	if isMissingTopic(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kafka: looking up topic %s: %w", keys, err)
	}
	for _, end := range ends {
		if end > 0 {
			return true, nil
		}
	}
	return false, nil
}

// readKeys reads a partition of the topic of keys to its end. Its writer must be fenced: nothing is added meanwhile.
func (b *Broker) readKeys(ctx context.Context, keys string, partition int32, retention time.Duration) (*seenKeys, error) {
	found := newSeenKeys(retention)
	end, err := b.offset(ctx, keys, partition, sarama.OffsetNewest)
	if err != nil {
		return nil, err
	}
	from, err := b.offset(ctx, keys, partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	for from < end {
		block, err := call(ctx, b, func() (*sarama.FetchResponseBlock, error) { return b.fetch(keys, partition, from, keysFetch) })
		if err != nil {
			return nil, err
		}
		next := committedRecords(block, from, func(record *sarama.Record, at time.Time) {
			err = errors.Join(err, found.read(record, at))
		})
		if err != nil {
			return nil, err
		}
		if next == from {
			return nil, fmt.Errorf("nothing to read at offset %d, the end is %d", from, end)
		}
		from = next
	}
	return found, nil
}

// keysFetch is how many bytes of keys are read at once.
const keysFetch = 4 << 20

// read takes one record in.
func (s *seenKeys) read(record *sarama.Record, at time.Time) error {
	if len(record.Key) != len(keyID{}) {
		return errors.New("a record is none of this program's keys: give the topic's name to nothing else")
	}
	id := keyID(record.Key)
	if record.Value == nil {
		s.remove(id)
		return nil
	}
	var value keyRecord
	if err := json.Unmarshal(record.Value, &value); err != nil {
		return fmt.Errorf("a key's record cannot be read: %w", err)
	}
	s.add(id, transact.Entry{State: value.State, Fingerprint: value.Fingerprint}, at)
	return nil
}
