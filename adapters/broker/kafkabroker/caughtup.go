package kafkabroker

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"
)

// backlog is what is left of the records that stood in a topic at Subscribe: for each partition the offset to reach.
type backlog map[int32]int64

// watchBacklog closes caughtUp once the group's committed offsets, whoever commits them, have reached the ends that the partitions had.
func (m *membership) watchBacklog(ctx context.Context, caughtUp chan<- struct{}) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	var left backlog
	for {
		select {
		case <-time.After(pause.NextBackOff()):
		case <-ctx.Done():
			return
		}
		var err error
		if left == nil {
			left, err = m.b.ends(ctx, m.physical)
		}
		if err == nil {
			err = m.b.reduce(ctx, m.physical, m.group, left)
		}
		if err != nil {
			m.log.Debug("kafka backlog cannot be read", slog.String("topic", m.physical), slog.Any("err", err))
			continue
		}
		if len(left) == 0 {
			close(caughtUp)
			return
		}
	}
}

// ends returns the end offset of each partition.
func (b *Broker) ends(ctx context.Context, physical string) (backlog, error) {
	if err := b.refresh(ctx, physical); err != nil {
		return nil, err
	}
	partitions, err := b.partitions(ctx, physical)
	if err != nil {
		return nil, err
	}
	left := backlog{}
	for _, partition := range partitions {
		if left[partition], err = b.offset(ctx, physical, partition, sarama.OffsetNewest); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// reduce removes the partitions that the group has caught up with.
func (b *Broker) reduce(ctx context.Context, physical, group string, left backlog) error {
	partitions := make([]int32, 0, len(left))
	for partition := range left {
		partitions = append(partitions, partition)
	}
	committed, err := b.fetchPoints(ctx, physical, group, partitions)
	if err != nil {
		return err
	}
	for partition, end := range left {
		// Without a commit the group stands at the oldest record, and retention may have removed what was not read.
		at, err := b.offset(ctx, physical, partition, sarama.OffsetOldest)
		if err != nil {
			return err
		}
		at = max(at, committed[partition].offset)
		if at < end {
			if at, err = b.skipMarkers(ctx, physical, partition, at, end); err != nil {
				return err
			}
		}
		if at >= end {
			delete(left, partition)
		}
	}
	return nil
}

// skipMarkers returns the offset of the first record at or behind from that is for consumers, or end where there is none
// before it. Transactions leave offsets behind that no consumer sees: markers, and the records of aborted ones.
func (b *Broker) skipMarkers(ctx context.Context, physical string, partition int32, from, end int64) (int64, error) {
	for from < end {
		block, err := call(ctx, b, func() (*sarama.FetchResponseBlock, error) { return b.fetch(physical, partition, from, 64<<10) })
		if err != nil {
			return from, err
		}
		next := behindMarkers(block, from)
		if next == from {
			return from, nil
		}
		from = next
	}
	return end, nil
}

// fetch reads batches of one partition, at least one and about size bytes, without waiting for any.
func (b *Broker) fetch(physical string, partition int32, from int64, size int32) (*sarama.FetchResponseBlock, error) {
	node, err := b.client.Leader(physical, partition)
	if err != nil {
		return nil, err
	}
	request := &sarama.FetchRequest{Version: 10, MaxWaitTime: 1, MinBytes: 0, MaxBytes: size, Isolation: sarama.ReadCommitted, SessionEpoch: -1}
	request.AddBlock(physical, partition, from, size, -1)
	response, err := node.Fetch(request)
	if err != nil {
		_ = node.Close()
		return nil, err
	}
	block := response.GetBlock(physical, partition)
	if block == nil {
		return nil, sarama.ErrIncompleteResponse
	}
	if block.Err != sarama.ErrNoError {
		return nil, block.Err
	}
	return block, nil
}

// behindMarkers returns the first offset at or behind from that may hold a record for consumers, as far as block tells.
func behindMarkers(block *sarama.FetchResponseBlock, from int64) int64 {
	for batch, visible := range batches(block) {
		if batch == nil || visible && batch.LastOffset() >= from { // a fetch begins with the batch that holds its offset
			return from
		}
		from = max(from, batch.LastOffset()+1)
	}
	return from
}

// committedRecords visits the records at or behind from that a read-committed consumer sees, with their times, and returns the offset behind
// all that block tells of.
func committedRecords(block *sarama.FetchResponseBlock, from int64, visit func(record *sarama.Record, at time.Time)) int64 {
	first := from
	for batch, visible := range batches(block) {
		if batch == nil {
			return from
		}
		from = max(from, batch.LastOffset()+1)
		if !visible {
			continue
		}
		for _, record := range batch.Records {
			if batch.FirstOffset+record.OffsetDelta < first {
				continue
			}
			at := batch.MaxTimestamp
			if !batch.LogAppendTime {
				at = batch.FirstTimestamp.Add(record.TimestampDelta)
			}
			visit(record, at)
		}
	}
	return from
}

// batches goes through the record batches of a fetch, and says of each whether consumers see it: markers and the records of aborted
// transactions are hidden. A nil batch, the last, is one that cannot be read further.
func batches(block *sarama.FetchResponseBlock) iter.Seq2[*sarama.RecordBatch, bool] {
	return func(yield func(*sarama.RecordBatch, bool) bool) {
		transactions := slices.SortedFunc(slices.Values(block.AbortedTransactions), func(a, b *sarama.AbortedTransaction) int {
			return cmp.Compare(a.FirstOffset, b.FirstOffset)
		})
		aborted := map[int64]bool{} // producers inside an aborted transaction
		for _, records := range block.RecordsSet {
			batch := records.RecordBatch
			if batch == nil || batch.PartialTrailingRecord {
				yield(nil, false)
				return
			}
			for len(transactions) > 0 && transactions[0].FirstOffset <= batch.LastOffset() {
				aborted[transactions[0].ProducerID] = true
				transactions = transactions[1:]
			}
			visible := !batch.Control && !(batch.IsTransactional && aborted[batch.ProducerID])
			if batch.Control {
				delete(aborted, batch.ProducerID)
			}
			if !yield(batch, visible) {
				return
			}
		}
	}
}
