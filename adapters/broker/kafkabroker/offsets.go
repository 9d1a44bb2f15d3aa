package kafkabroker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

// metadataPrefix begins the metadata of our commits; behind it stands the bound of what may have been delivered.
const metadataPrefix = "oncemill/1 delivered-below="

// groupMember is who commits: the coordinator refuses a member that is no longer of the generation.
type groupMember struct {
	group, topic, member string
	generation           int32
}

// startingPoints returns for each partition the offset to begin at and the bound below which records may have been
// delivered before. Where nothing is committed nobody has delivered anything. Where somebody else committed, by a
// tool say, what a window holds may have been delivered.
func (b *Broker) startingPoints(ctx context.Context, physical, group string, partitions []int32, window int) (map[int32]point, error) {
	committed, err := b.fetchPoints(ctx, physical, group, partitions)
	if err != nil {
		return nil, err
	}
	starts := make(map[int32]point, len(partitions))
	for _, partition := range partitions {
		p, found := committed[partition]
		switch {
		case !found:
			oldest, err := b.offset(ctx, physical, partition, sarama.OffsetOldest)
			if err != nil {
				return nil, err
			}
			p = point{offset: oldest}
		case p.upTo < 0:
			p.upTo = p.offset + int64(window)
		}
		starts[partition] = p
	}
	return starts, nil
}

// CommittedOffsets reports whether the group has a committed offset in the topic; both are logical names. A group that
// ran before and has none would begin at the oldest record again: Kafka forgets the offsets of a group without members after a
// time (offsets.retention.minutes).
func (b *Broker) CommittedOffsets(ctx context.Context, group, topic string) (bool, error) {
	if b.isClosed() {
		return false, ErrClosed
	}
	physical := b.conf.physicalTopic(topic)
	partitions, err := b.partitions(ctx, physical)
	if isMissingTopic(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kafka: looking up topic %s: %w", physical, err)
	}
	committed, err := b.fetchPoints(ctx, physical, b.conf.physicalGroup(group), partitions)
	if errors.Is(err, sarama.ErrUnstableOffsetCommit) {
		return true, nil // a transaction of a member that died has yet to end: the group is known
	}
	return len(committed) > 0, err
}

func (b *Broker) partitions(ctx context.Context, physical string) ([]int32, error) {
	return call(ctx, b, func() ([]int32, error) { return b.client.Partitions(physical) })
}

// offset asks the partition's leader, once more when the leader has changed.
func (b *Broker) offset(ctx context.Context, physical string, partition int32, at int64) (int64, error) {
	offset, err := call(ctx, b, func() (int64, error) {
		offset, err := b.client.GetOffset(physical, partition, at)
		if err == nil {
			return offset, nil
		}
		if err := b.client.RefreshMetadata(physical); err != nil {
			return 0, err
		}
		return b.client.GetOffset(physical, partition, at)
	})
	if err != nil {
		return 0, fmt.Errorf("kafka: asking for an offset of %s/%d: %w", physical, partition, err)
	}
	return offset, nil
}

// fetchPoints returns what the group has committed; partitions without a commit are missing. A point that was not committed by this adapter has upTo -1.
func (b *Broker) fetchPoints(ctx context.Context, physical, group string, partitions []int32) (map[int32]point, error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	response, err := coordinate(ctx, b, group, func(node *sarama.Broker) (*sarama.OffsetFetchResponse, error) {
		request := sarama.NewOffsetFetchRequest(b.client.Config().Version, group, map[string][]int32{physical: partitions})
		request.RequireStable = request.Version >= 7
		response, err := node.FetchOffset(request)
		if err != nil {
			return nil, transportError{err}
		}
		return response, fetchError(response, physical, partitions)
	})
	if err != nil {
		return nil, fmt.Errorf("kafka: reading the offsets of group %s: %w", group, err)
	}
	points := map[int32]point{}
	for _, partition := range partitions {
		if block := response.GetBlock(physical, partition); block.Offset >= 0 {
			points[partition] = point{offset: block.Offset, upTo: parseMetadata(block.Metadata)}
		}
	}
	return points, nil
}

// fetchError returns the first error in the answer.
func fetchError(response *sarama.OffsetFetchResponse, physical string, partitions []int32) error {
	if response.Err != sarama.ErrNoError {
		return response.Err
	}
	for _, partition := range partitions {
		block := response.GetBlock(physical, partition)
		if block == nil {
			return sarama.ErrIncompleteResponse
		}
		if block.Err != sarama.ErrNoError {
			return block.Err
		}
	}
	return nil
}

func parseMetadata(text string) int64 {
	number, ours := strings.CutPrefix(text, metadataPrefix)
	if !ours {
		return -1
	}
	upTo, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return -1
	}
	return upTo
}

// commitPoints commits and returns the partitions whose commit got through; with an error for the others.
func (b *Broker) commitPoints(ctx context.Context, owner groupMember, points map[int32]point) ([]int32, error) {
	if len(points) == 0 {
		return nil, nil
	}
	response, err := coordinate(ctx, b, owner.group, func(node *sarama.Broker) (*sarama.OffsetCommitResponse, error) {
		request := sarama.NewOffsetCommitRequest(b.client.Config(), owner.group)
		request.ConsumerID, request.ConsumerGroupGeneration = owner.member, owner.generation
		for partition, p := range points {
			request.AddBlockWithLeaderEpoch(owner.topic, partition, p.offset, -1, 0, metadataPrefix+strconv.FormatInt(p.upTo, 10))
		}
		response, err := node.CommitOffset(request)
		if err != nil {
			return nil, transportError{err}
		}
		return response, moved(response, owner.topic)
	})
	if response == nil {
		return nil, fmt.Errorf("kafka: committing offsets of group %s: %w", owner.group, err)
	}
	var committed []int32
	var errs []error
	for partition := range points {
		switch code, known := response.Errors[owner.topic][partition]; {
		case !known:
			errs = append(errs, fmt.Errorf("kafka: committing %s/%d of group %s: %w", owner.topic, partition, owner.group, sarama.ErrIncompleteResponse))
		case code == sarama.ErrNoError:
			committed = append(committed, partition)
		default:
			errs = append(errs, fmt.Errorf("kafka: committing %s/%d of group %s: %w", owner.topic, partition, owner.group, code))
		}
	}
	return committed, errors.Join(errs...)
}

// moved returns an error that asks for another coordinator, where the answer has one.
func moved(response *sarama.OffsetCommitResponse, topic string) error {
	for _, code := range response.Errors[topic] {
		if askAgain(code) {
			return code
		}
	}
	return nil
}

// transportError is a failure of the connection: the request may or may not have been carried out.
type transportError struct{ error }

func (e transportError) Unwrap() error { return e.error }

// askAgain reports answers that another moment, or another coordinator, changes.
func askAgain(err error) bool {
	return errors.Is(err, sarama.ErrNotCoordinatorForConsumer) || errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable) ||
		errors.Is(err, sarama.ErrOffsetsLoadInProgress) || errors.Is(err, sarama.ErrUnstableOffsetCommit)
}

// coordinate runs ask with the group's coordinator. When the coordinator has moved or does not answer it looks for it once
// more, three times in all.
func coordinate[T any](ctx context.Context, b *Broker, group string, ask func(*sarama.Broker) (T, error)) (T, error) {
	const attempts = 3
	return call(ctx, b, func() (answer T, err error) {
		for attempt := range attempts {
			if attempt > 0 {
				select {
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
					return answer, ctx.Err()
				}
				_ = b.client.RefreshCoordinator(group)
			}
			var node *sarama.Broker
			if node, err = b.client.Coordinator(group); err != nil {
				continue
			}
			answer, err = ask(node)
			var broken transportError
			if errors.As(err, &broken) {
				_ = node.Close()
				continue
			}
			if !askAgain(err) {
				return answer, err
			}
		}
		return answer, err
	})
}
