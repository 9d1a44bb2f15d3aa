package dynamotx

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// actions writes records in their order, in the caller's transaction. Their ids come from counters that are raised at once: a transaction that
// does not commit leaves gaps, and one that commits late has ids that are lower than what was seen before. What was decided on the
// effects of another transaction has higher ids than that one, as it asks for them later.
func (s *source) actions(ctx context.Context, records []outbox.Record) ([]types.TransactWriteItem, error) {
	if len(records) == 0 {
		return nil, nil
	}
	a, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	next, err := a.numbers(ctx, records)
	if err != nil {
		return nil, s.failed("get ids for the records", err)
	}
	var actions []types.TransactWriteItem
	for nth, r := range records {
		lane, parts := r.Lane(), partsFor(r.Payload)
		if parts > maxParts {
			return nil, tooLarge("a message for %s has %d bytes", r.Topic, len(r.Payload))
		}
		var due time.Time
		if r.DeliverAt.After(a.now.Earliest) {
			due = r.DeliverAt
		}
		next[lane]++
		r.ID, r.CreatedAt = newID(lane, next[lane], due, parts), a.now.Earliest
		item, err := recordItem(r, nth)
		if err != nil {
			return nil, err
		}
		actions = append(actions, a.put(item, "attribute_not_exists(#record)"))
		for n := range parts {
			part := place(partBody(r.ID), sortPart(n))
			part[attrPayload] = &types.AttributeValueMemberB{Value: r.Payload[n*partSize : min((n+1)*partSize, len(r.Payload))]}
			actions = append(actions, a.put(part, ""))
		}
	}
	return actions, nil
}

// numbers has each lane's counter give as many numbers as records need of it, and returns by lane the number before the first.
func (a access) numbers(ctx context.Context, records []outbox.Record) (map[int]int64, error) {
	wanted := map[int]int64{}
	for _, r := range records {
		wanted[r.Lane()]++
	}
	before := map[int]int64{}
	for lane, n := range wanted {
		last, err := a.count(ctx, lane, n)
		if err != nil {
			return nil, err
		}
		before[lane] = last - n
	}
	return before, nil
}

// count raises a lane's counter. An answer that is lost leaves a gap.
func (a access) count(ctx context.Context, lane int, n int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	out, err := a.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &a.table, Key: place(partCount(lane), countItem), UpdateExpression: new("ADD #given :n"),
		ExpressionAttributeNames: map[string]string{"#given": attrGiven}, ExpressionAttributeValues: Item{":n": Int(n)},
		ReturnValues: types.ReturnValueUpdatedNew,
	})
	if err != nil {
		return 0, fmt.Errorf("raise the counter of lane %d: %w", lane, err)
	}
	return Item(out.Attributes).Int(attrGiven)
}

// attrGiven is a counter's.
const attrGiven = "given" // N
