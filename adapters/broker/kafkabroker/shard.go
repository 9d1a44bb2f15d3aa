package kafkabroker

import (
	"cmp"
	"context"
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

// stop ends what Next gives out. Called by one goroutine, once.
func (s *shard) stop() { close(s.stopping) }

// close lets the producer go, in the background: what it has on its way can take as long as the network does.
func (s *shard) close() {
	s.lose(transact.ErrLost)
	s.t.b.background(s.producer.close)
}
