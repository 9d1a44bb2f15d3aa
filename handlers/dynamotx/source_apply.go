package dynamotx

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// unit is changes that happen together or, where a condition of theirs is not met, not at all.
type unit struct {
	actions []types.TransactWriteItem
	// parts is how many of the actions are on parts of a payload, which count for the size of a transaction.
	parts int
}

// recordSize is more than the item of a record has: metadata, what is inlined of its payload, names.
const recordSize = 64 << 10

func (u unit) size() int { return (len(u.actions)-u.parts)*recordSize + u.parts*partSize }

// put writes an item, on a condition on its sort key where one is given.
func (a access) put(item Item, condition string) types.TransactWriteItem {
	put := &types.Put{TableName: &a.table, Item: item}
	if condition != "" {
		put.ConditionExpression, put.ExpressionAttributeNames = &condition, map[string]string{"#record": attrSort}
	}
	return types.TransactWriteItem{Put: put}
}

// remove removes a record, if it is there, and the parts of its payload.
func (a access) remove(partition string, id int64, condition string) unit {
	del := &types.Delete{TableName: &a.table, Key: place(partition, sortID(id))}
	if condition != "" {
		del.ConditionExpression, del.ExpressionAttributeNames = &condition, map[string]string{"#record": attrSort}
	}
	u := unit{actions: []types.TransactWriteItem{{Delete: del}}, parts: partsOf(id)}
	for n := range u.parts {
		u.actions = append(u.actions, types.TransactWriteItem{Delete: &types.Delete{TableName: &a.table, Key: place(partBody(id), sortPart(n))}})
	}
	return u
}

// move takes a record's item, which the caller has changed, from one partition to another, if it is still there.
func (a access) move(item Item, to string) unit {
	from := item.String(attrPartition)
	item[attrPartition] = String(to)
	return unit{actions: []types.TransactWriteItem{
		{Delete: &types.Delete{
			TableName: &a.table, Key: place(from, item.String(attrSort)),
			ConditionExpression: new("attribute_exists(#record)"), ExpressionAttributeNames: map[string]string{"#record": attrSort},
		}},
		a.put(item, ""),
	}}
}

// guard checks that a lane has this token.
func (a access) guard(lane outbox.Lane) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &a.table, Key: place(partLane(lane.Number), laneItem), ConditionExpression: new("#token = :token"),
		ExpressionAttributeNames: map[string]string{"#token": attrToken}, ExpressionAttributeValues: Item{":token": String(lane.Token)},
	}}
}

// apply changes what units say, as much at once as fits, while the lane is held, where one is given. It returns which units took effect: the others met a
// condition that did not hold.
func (a access) apply(ctx context.Context, lane *outbox.Lane, units []unit) ([]bool, error) {
	applied := make([]bool, len(units))
	var batch []int
	count, size := 1, recordSize
	for n, u := range units {
		if len(batch) > 0 && (count+len(u.actions) > maxActions || size+u.size() > maxTransaction) {
			if err := a.applyBatch(ctx, lane, units, batch, applied); err != nil {
				return applied, err
			}
			batch, count, size = nil, 1, recordSize
		}
		batch, count, size = append(batch, n), count+len(u.actions), size+u.size()
	}
	return applied, a.applyBatch(ctx, lane, units, batch, applied)
}

// applyBatch changes in one transaction what the units in batch say, without those whose conditions do not hold.
func (a access) applyBatch(ctx context.Context, lane *outbox.Lane, units []unit, batch []int, applied []bool) error {
	for n := 1; len(batch) > 0; {
		var actions []types.TransactWriteItem
		var of []int // the unit of each action, -1 for the guard
		if lane != nil {
			actions, of = append(actions, a.guard(*lane)), append(of, -1)
		}
		for _, u := range batch {
			for _, action := range units[u].actions {
				actions, of = append(actions, action), append(of, u)
			}
		}
		err := a.transact(ctx, actions)
		if err == nil {
			for _, u := range batch {
				applied[u] = true
			}
			return nil
		}
		missed := unmet(err, of)
		switch {
		case missed[-1]:
			return outbox.ErrLaneLost
		case len(missed) > 0:
			var rest []int
			for _, u := range batch {
				if !missed[u] {
					rest = append(rest, u)
				}
			}
			batch = rest
		case !errors.Is(refused(err), errContended) || n == attempts || !pause(ctx, n):
			return errors.Join(err, ctx.Err())
		default:
			n++
		}
	}
	return nil
}

// transact sends a transaction. The SDK sends it again under one token where no answer comes.
func (a access) transact(ctx context.Context, actions []types.TransactWriteItem) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if _, err := a.client.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: actions}); err != nil {
		return fmt.Errorf("write to DynamoDB: %w", err)
	}
	return nil
}

// unmet are the units with a condition that did not hold.
func unmet(err error, of []int) map[int]bool {
	found := map[int]bool{}
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) {
		for n, reason := range cancelled.CancellationReasons {
			if text(reason.Code) == conditionFailed && n < len(of) {
				found[of[n]] = true
			}
		}
	}
	return found
}
