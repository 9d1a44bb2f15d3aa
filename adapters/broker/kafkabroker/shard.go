package kafkabroker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/transact"
)

// shard is one partition of a topic with its keys and the producer that alone may commit for it.
type shard struct {
	t         *transactor
	partition int32
	session   sarama.ConsumerGroupSession
	producer  *producer
	seen      *seenKeys
	messages  <-chan *sarama.ConsumerMessage
	tag       string // of the assignment, in deliveries

	start     int64 // the first record to handle
	next      int64 // behind the last record that was given out
	committed int64
	suspects  int64 // records below it may have been given out by an owner that died of one
	held      *sarama.ConsumerMessage
	backlog   int64 // keys are not forgotten before the position has reached it
	idle      time.Time

	stopping chan struct{}
	ctx      context.Context // ends when the shard is lost
	lose     context.CancelCauseFunc
}

var _ transact.Shard = (*shard)(nil)

// openShard takes a partition over. The order is the point: the previous owner is fenced before anything is read, so that neither keys nor offsets
// can change behind what was read.
func (t *transactor) openShard(ctx context.Context, session sarama.ConsumerGroupSession, partition int32) (*shard, error) {
	s := &shard{
		t: t, partition: partition, session: session, stopping: make(chan struct{}),
		tag: fmt.Sprintf("%d/%s/%d", session.GenerationID(), t.physical, partition),
	}
	s.ctx, s.lose = context.WithCancelCause(context.Background())
	var err error
	if s.producer, err = t.fence(ctx, partition); err != nil {
		return nil, fmt.Errorf("kafka: taking over partition %d of %s: %w", partition, t.physical, err)
	}
	if err := s.load(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("kafka: taking over partition %d of %s: %w", partition, t.physical, err)
	}
	return s, nil
}

// load reads the keys, and then the offsets.
func (s *shard) load(ctx context.Context) (err error) {
	t := s.t
	if s.seen, err = t.b.readKeys(ctx, t.keys, s.partition, t.retention); err != nil {
		return fmt.Errorf("reading the keys in topic %s: %w", t.keys, err)
	}
	points, err := t.b.startingPoints(ctx, t.physical, t.group, []int32{s.partition}, 0)
	if err != nil {
		return err
	}
	s.start, s.suspects = points[s.partition].offset, points[s.partition].upTo
	s.next, s.committed = s.start, s.start
	if err := s.mark(ctx, s.reach()); err != nil {
		return err
	}
	s.backlog, err = t.b.offset(ctx, t.physical, s.partition, sarama.OffsetNewest)
	return err
}

// Name is the partition's number.
func (s *shard) Name() string { return strconv.Itoa(int(s.partition)) }

// Stopping is closed when the partition is to be given back.
func (s *shard) Stopping() <-chan struct{} { return s.stopping }

// Next returns the next record as a message.
func (s *shard) Next(wait time.Duration) (*message.Message, error) {
	select {
	case <-s.stopping:
		return nil, transact.ErrStopping
	default:
	}
	if s.next >= s.committed+underWay {
		return nil, nil // the batch is to be committed
	}
	if record := s.held; record != nil {
		return s.take(record, true)
	}
	source := s.messages
	if s.isFull() {
		source = nil
	}
	var timeout <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		timeout = timer.C
	} else {
		select {
		case record, open := <-source:
			return s.take(record, open)
		default:
			return nil, nil
		}
	}
	select {
	case record, open := <-source:
		return s.take(record, open)
	case <-timeout:
		return nil, nil
	case <-s.stopping:
		return nil, transact.ErrStopping
	}
}

// isFull reports that no more keys fit into memory: the partition waits for old ones to expire, rather than forget one early.
func (s *shard) isFull() bool {
	full := len(s.seen.keys) >= cmp.Or(s.t.b.conf.MaxKeys, defaultMaxKeys)
	s.t.setFull(s.partition, full)
	return full
}

func (s *shard) take(record *sarama.ConsumerMessage, open bool) (*message.Message, error) {
	if !open {
		select {
		case <-s.session.Context().Done():
			return nil, transact.ErrStopping
		default:
			return nil, errors.New("kafka: the partition cannot be read any more")
		}
	}
	s.held = nil
	if s.next > s.committed && record.Offset >= s.committed+underWay {
		s.held = record
		return nil, nil
	}
	s.next = record.Offset + 1
	msg, delivery := decode(record, s.tag)
	delivery.Redelivered = record.Offset < s.suspects
	msg.SetContext(envelope.WithDelivery(s.ctx, delivery))
	return msg, nil
}

// underWay is how far beyond the committed offset records are given out.
const underWay = 512

// reach returns the bound below which records may be given out before the next commit says more.
func (s *shard) reach() int64 { return max(s.suspects, s.next+underWay) }

// mark commits the position outside a transaction, with the bound below which records may have been given out.
func (s *shard) mark(ctx context.Context, below int64) error {
	member := groupMember{group: s.t.group, topic: s.t.physical, member: s.session.MemberID(), generation: s.session.GenerationID()}
	_, err := s.t.b.commitPoints(ctx, member, map[int32]point{s.partition: {offset: s.committed, upTo: below}})
	return err
}

// leave tells the next owner that nothing was under way. One that is not told runs the first records as suspects.
func (s *shard) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), lastCommitTimeout)
	defer cancel()
	if err := s.mark(ctx, max(s.committed, s.suspects)); err != nil && !isLost(err) {
		s.t.log.Warn("kafka partition left without a mark; its first messages run one by one", slog.String("topic", s.t.physical), slog.Any("err", err))
	}
}

// Lookup returns what the partition's keys say.
func (s *shard) Lookup(key string) (transact.Entry, bool) { return s.seen.lookup(key) }

// Check says whether the message could be published.
func (s *shard) Check(ctx context.Context, topic string, msg *message.Message) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return unpublishable(topic, err)
	}
	physical := s.t.b.conf.physicalTopic(topic)
	if _, err := s.t.b.pub.record(topic, physical, msg); err != nil {
		return err
	}
	return s.t.b.pub.ensure(ctx, physical)
}

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

// stop ends what Next gives out. Called by one goroutine, once.
func (s *shard) stop() { close(s.stopping) }

// close lets the producer go, in the background: what it has on its way can take as long as the network does.
func (s *shard) close() {
	s.lose(transact.ErrLost)
	s.t.b.background(s.producer.close)
}
