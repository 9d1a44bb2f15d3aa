package dynamotx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Reader reads items as they are now: every read is strongly consistent. Two reads see the items of two moments, so what the writes rely
// on has to stand in their conditions.
type Reader interface {
	// Get returns one item, or nil where there is none.
	Get(ctx context.Context, table string, key Item) (Item, error)
	// GetAll returns the items of keys of one table, in the order of the keys, nil for each that is not there. No key may come twice.
	GetAll(ctx context.Context, table string, keys ...Item) ([]Item, error)
}

// maxBatch is how many keys the service takes at once.
const maxBatch = 100

type reader struct{ client *dynamodb.Client }

func (r reader) Get(ctx context.Context, table string, key Item) (Item, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	out, err := r.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String(table), Key: key, ConsistentRead: aws.Bool(true)})
	if err != nil {
		return nil, fmt.Errorf("read from table %s: %w", table, err)
	}
	if len(out.Item) == 0 {
		return nil, nil
	}
	return out.Item, nil
}

func (r reader) GetAll(ctx context.Context, table string, keys ...Item) ([]Item, error) {
	found := make([]Item, len(keys))
	missing := make([]map[string]types.AttributeValue, 0, len(keys))
	for _, key := range keys {
		missing = append(missing, key)
	}
	for idle := 0; len(missing) > 0; {
		asked := missing[:min(maxBatch, len(missing))]
		out, err := r.batch(ctx, table, asked)
		if err != nil {
			return nil, fmt.Errorf("read from table %s: %w", table, err)
		}
		for _, item := range out.Responses[table] {
			if n := slices.IndexFunc(keys, func(key Item) bool { return has(item, key) }); n >= 0 {
				found[n] = item
			}
		}
		left := out.UnprocessedKeys[table].Keys
		if len(left) < len(asked) {
			idle = 0
		} else if idle++; idle == attempts || !pause(ctx, idle) {
			return nil, errors.Join(fmt.Errorf("read from table %s: the service left out all keys, again and again", table), ctx.Err())
		}
		missing = append(slices.Clone(left), missing[len(asked):]...)
	}
	return found, nil
}

func (r reader) batch(ctx context.Context, table string, keys []map[string]types.AttributeValue) (*dynamodb.BatchGetItemOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return r.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]types.KeysAndAttributes{
		table: {Keys: keys, ConsistentRead: aws.Bool(true)},
	}})
}

// has reports whether the item is that of the key.
func has(item, key Item) bool {
	for name := range maps.Keys(key) {
		if item.String(name) != key.String(name) {
			return false
		}
	}
	return true
}

// lookUp returns the outcome of a key, if its transaction has committed.
func (r reader) lookUp(ctx context.Context, table, id string) (outcome, bool, error) {
	item, err := r.Get(ctx, table, Item{attrID: String(id)})
	if err != nil || item == nil || expired(item, time.Now()) {
		return outcome{}, false, err
	}
	return readOutcome(item), true, nil
}
