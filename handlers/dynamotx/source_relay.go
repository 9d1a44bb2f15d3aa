package dynamotx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// Fetch implements outbox.Source. Records are found by what they are and not by their place behind another, so what commits late is found late. Those
// that are delayed stand behind the query's end until they are due.
func (s *source) Fetch(ctx context.Context, lane outbox.Lane, limit int) ([]outbox.Record, error) {
	a, err := s.open(ctx)
	if err != nil {
		return nil, s.failed("fetch records", err)
	}
	records, err := a.fetch(ctx, lane, limit)
	if err != nil {
		return nil, s.failed(fmt.Sprintf("fetch records of lane %d", lane.Number), err)
	}
	return records, nil
}

func (a access) fetch(ctx context.Context, lane outbox.Lane, limit int) ([]outbox.Record, error) {
	sieve := sieve{now: a.now.Earliest, limit: limit, held: map[string]bool{}}
	owned := false
	var bad error
	err := a.query(ctx, partLane(lane.Number), sortID(dueBy(a.now.Earliest)), int32(min(limit, maxBatch))+1, func(item Item) bool {
		if item.String(attrSort) == laneItem {
			owned = item.String(attrToken) == lane.Token
			return owned
		}
		if !owned {
			return false
		}
		var more bool
		more, bad = sieve.see(item)
		return more && bad == nil
	})
	switch err = errors.Join(err, bad); {
	case err != nil:
		return nil, err
	case !owned:
		return nil, outbox.ErrLaneLost
	}
	broken, err := a.readBodies(ctx, sieve.due)
	// What is not whole is not published; it shows in the list of records, and in the age of the oldest.
	return slices.DeleteFunc(sieve.due, func(r outbox.Record) bool { return broken[r.ID] }), err
}

// sieve keeps of the records of a lane, in the order of their ids, those that are due.
type sieve struct {
	now   time.Time
	limit int
	held  map[string]bool // ordering keys of records that wait for their next attempt
	due   []outbox.Record
}

func (s *sieve) see(item Item) (more bool, err error) {
	r, err := readRecord(item)
	if err != nil {
		return false, err
	}
	switch {
	case r.DeliverAt.After(s.now):
	case item.time(attrRetryAt).After(s.now):
		s.held[r.OrderingKey] = true
	case r.OrderingKey != "" && s.held[r.OrderingKey]:
	default:
		s.due = append(s.due, r)
	}
	return len(s.due) < s.limit, nil
}

// Done implements outbox.Source.
func (s *source) Done(ctx context.Context, lane outbox.Lane, ids []int64) error {
	a, err := s.open(ctx)
	if err != nil {
		return s.failed("remove published records", err)
	}
	var units []unit
	for _, id := range unique(ids) {
		if laneOf(id) == lane.Number {
			units = append(units, a.remove(partLane(lane.Number), id, ""))
		}
	}
	if _, err := a.apply(ctx, &lane, units); err != nil {
		return s.failed(fmt.Sprintf("remove published records of lane %d", lane.Number), err)
	}
	return nil
}

func unique(ids []int64) []int64 {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Failed implements outbox.Source. What is set aside leaves its lane, so that nobody reads it there again and again.
func (s *source) Failed(ctx context.Context, lane outbox.Lane, failures []outbox.Failure) error {
	a, err := s.open(ctx)
	if err != nil {
		return s.failed("note unpublished records", err)
	}
	units, err := a.failures(ctx, lane, failures)
	if err == nil {
		_, err = a.apply(ctx, &lane, units)
	}
	if err != nil {
		return s.failed(fmt.Sprintf("note unpublished records of lane %d", lane.Number), err)
	}
	return nil
}

func (a access) failures(ctx context.Context, lane outbox.Lane, failures []outbox.Failure) ([]unit, error) {
	var units []unit
	var keys []Item
	aside := map[string]outbox.Failure{}
	for _, f := range failures {
		switch {
		case laneOf(f.ID) != lane.Number:
		case f.Aside:
			keys = append(keys, place(partLane(lane.Number), sortID(f.ID)))
			aside[sortID(f.ID)] = f
		default:
			units = append(units, a.wait(lane, f))
		}
	}
	items, err := a.GetAll(ctx, a.table, keys...)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		if item == nil {
			continue // it is gone
		}
		f := aside[item.String(attrSort)]
		item[attrReason], item[attrAttempts] = String(readable(f.Reason)), Int(item.number(attrAttempts)+counted(f))
		delete(item, attrRetryAt)
		units = append(units, a.move(item, partAside))
	}
	return units, nil
}

func counted(f outbox.Failure) int64 {
	if f.Uncounted {
		return 0
	}
	return 1
}

// wait has a record wait for its next attempt, if it is still there.
func (a access) wait(lane outbox.Lane, f outbox.Failure) unit {
	return unit{actions: []types.TransactWriteItem{{Update: &types.Update{
		TableName: &a.table, Key: place(partLane(lane.Number), sortID(f.ID)), ConditionExpression: aws.String("attribute_exists(#record)"),
		UpdateExpression: aws.String("SET #retry_at = :at, #reason = :reason ADD #attempts :counted"),
		ExpressionAttributeNames: map[string]string{
			"#record": attrSort, "#retry_at": attrRetryAt, "#reason": attrReason, "#attempts": attrAttempts,
		},
		ExpressionAttributeValues: Item{
			":at": Int(a.now.Earliest.Add(max(f.RetryIn, 0)).UnixMicro()), ":reason": String(readable(f.Reason)), ":counted": Int(counted(f)),
		},
	}}}}
}
