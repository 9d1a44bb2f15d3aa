package kafkabroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"

	"github.com/oncemill/oncemill/middleware/transact"
)

// maxTombstones bounds the keys that one transaction forgets.
const maxTombstones = 500

// Commit commits in one Kafka transaction.
func (s *shard) Commit(ctx context.Context, batch transact.Batch) error {
	expired := s.expired()
	if len(batch.Outputs) == 0 && len(batch.Keys) == 0 && len(expired) == 0 && s.next == s.committed {
		return nil
	}
	records, err := s.records(batch, expired)
	if err != nil {
		return err
	}
	err = s.transaction(ctx, records, s.send)
	if errors.Is(err, sarama.ErrMessageSizeTooLarge) { // one of a record batch: send them one by one to learn which
		err = s.transaction(ctx, records, s.sendSingly)
	}
	if refused := (*transact.Refused)(nil); errors.As(err, &refused) && refused.Output < len(batch.Outputs) {
		return refused
	}
	if err != nil {
		return fmt.Errorf("%w: %w", transact.ErrLost, err)
	}
	s.remember(batch, expired)
	return nil
}

// expired are keys to forget; none before what stood in the partition at the takeover is done: after a long stop it may hold copies of messages whose
// keys are old. Where there is no room the retention alone counts, or the backlog would never be done.
func (s *shard) expired() []keyID {
	if s.committed < s.backlog && !s.isFull() && !s.drained() {
		return nil
	}
	s.backlog = 0
	return s.seen.expired(time.Now(), maxTombstones)
}

// drained reports that nothing but markers is left of the backlog: nothing came for a while.
func (s *shard) drained() bool {
	if s.next != s.committed || len(s.messages) > 0 {
		s.idle = time.Time{}
		return false
	}
	if s.idle.IsZero() {
		s.idle = time.Now()
		return false
	}
	if time.Since(s.idle) < markerCheck {
		return false
	}
	s.idle = time.Time{}
	at, err := s.t.b.skipMarkers(s.ctx, s.t.physical, s.partition, s.committed, s.backlog)
	return err == nil && at >= s.backlog
}

// markerCheck is how long a partition is quiet before it is looked up whether anything is left.
const markerCheck = 2 * time.Second

// records makes the records of a transaction, those of the outputs first.
func (s *shard) records(batch transact.Batch, expired []keyID) ([]*sarama.ProducerMessage, error) {
	records := make([]*sarama.ProducerMessage, 0, len(batch.Outputs)+len(batch.Keys)+len(expired))
	for _, out := range batch.Outputs {
		record, err := s.t.b.pub.record(out.Topic, s.t.b.conf.physicalTopic(out.Topic), out.Message)
		if err != nil {
			return nil, &transact.Refused{Output: len(records), Err: err}
		}
		records = append(records, record)
	}
	for _, k := range batch.Keys {
		value, err := json.Marshal(keyRecord{Key: k.Key, State: k.State, Fingerprint: k.Fingerprint})
		if err != nil {
			return nil, fmt.Errorf("kafka: writing a key: %w", err)
		}
		records = append(records, s.keyRecord(idOf(k.Key), sarama.ByteEncoder(value)))
	}
	for _, id := range expired {
		records = append(records, s.keyRecord(id, nil))
	}
	return records, nil
}

func (s *shard) keyRecord(id keyID, value sarama.Encoder) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: s.t.keys, Partition: s.partition, Key: sarama.ByteEncoder(id[:]), Value: value}
}

// transaction sends records in a transaction and commits it with the offsets. On an error nothing is committed, or it is not known; then the
// transaction is aborted where that is possible, so that readers downstream do not wait for it.
func (s *shard) transaction(ctx context.Context, records []*sarama.ProducerMessage, send func(context.Context, []*sarama.ProducerMessage) error) error {
	producer := s.producer.async
	if err := producer.BeginTxn(); err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	err := send(ctx, records)
	if err == nil {
		err = s.commit(ctx)
	}
	if err != nil && ctx.Err() == nil {
		err = errors.Join(err, s.t.b.within(ctx, producer.AbortTxn))
	}
	return err
}

// commit adds the offsets, with the member's place in the group, and ends the transaction.
func (s *shard) commit(ctx context.Context) error {
	member := &sarama.ConsumerGroupMetadata{GroupID: s.t.group, GenerationID: s.session.GenerationID(), MemberID: s.session.MemberID()}
	metadata := metadataPrefix + strconv.FormatInt(s.reach(), 10)
	offsets := map[string][]*sarama.PartitionOffsetMetadata{
		s.t.physical: {{Partition: s.partition, Offset: s.next, LeaderEpoch: -1, Metadata: &metadata}},
	}
	if err := s.producer.async.AddOffsetsToTxnWithGroupMetadata(offsets, member); err != nil {
		return fmt.Errorf("adding the offsets: %w", err)
	}
	if err := s.t.b.within(ctx, s.producer.async.CommitTxn); err != nil {
		return fmt.Errorf("committing the transaction: %w", err)
	}
	return nil
}

// send sends all records and waits until the cluster has them.
func (s *shard) send(ctx context.Context, records []*sarama.ProducerMessage) error {
	errs := s.produce(ctx, records)
	return errors.Join(errs...)
}

// sendSingly sends one record after the other, each in a batch of its own, up to the first that is refused.
func (s *shard) sendSingly(ctx context.Context, records []*sarama.ProducerMessage) error {
	for i, record := range records {
		err := s.produce(ctx, []*sarama.ProducerMessage{record})[0]
		if errors.Is(err, sarama.ErrMessageSizeTooLarge) {
			return &transact.Refused{Output: i, Err: unpublishable(record.Topic, errors.New("larger than the topic's max.message.bytes"))}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shard) produce(ctx context.Context, records []*sarama.ProducerMessage) []error {
	errs := make([]error, len(records))
	batch := newBatch(len(records))
	for i, r := range records {
		again := &sarama.ProducerMessage{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers}
		again.Metadata = batch.expect(i, r.ByteSize(2))
		if err := s.producer.send(ctx, again); err != nil {
			batch.resolve(i, err)
		}
	}
	batch.wait(ctx, errs)
	return errs
}

// remember brings the keys in memory to what was committed.
func (s *shard) remember(batch transact.Batch, expired []keyID) {
	now := time.Now()
	for _, id := range expired {
		s.seen.remove(id)
	}
	for _, k := range batch.Keys {
		s.seen.add(idOf(k.Key), k.Entry, now)
	}
	s.committed = s.next
}
