package dynamocounters

import (
	"context"
	"math"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/tally"
)

// Topics that the plugin listens to.
const (
	TopicAdd       = "counters.add"
	TopicCompleted = "payments.completed"
)

// Tables, and the attributes of their items.
const (
	tableCounters = "counters"
	tableEvents   = "events"

	attrName    = "name"    // S: the counter
	attrTotal   = "total"   // N
	attrCounter = "counter" // S
	attrEvent   = "event"   // S: the message's key
	attrDelta   = "delta"   // N
)

const guarantee = `Counters in DynamoDB: each message is counted exactly once for its key: event, total and key commit in one TransactWriteItems. A total is the sum of its events at every commit. ` +
	`Counters only grow; a bad delta or an overflow becomes a dead letter and changes nothing. ` +
	`Off unless plugins.counters-dynamodb.enabled is set. Not promised: the order of events of different messages.`

// Plugin returns the plugin "counters-dynamodb" with its bindings "counters-dynamodb" (payments.completed) and
// "counters-dynamodb-add" (counters.add). It has to be enabled.
func Plugin() handlers.Plugin {
	return handlers.Plugin{
		Name: "counters-dynamodb", OptIn: true, Replaces: "counters", Guarantee: guarantee,
		Open: handlers.Open(func(cfg Config, b *handlers.Bindings) error {
			db := dynamotx.New(cfg.DynamoDB,
				dynamotx.Table{Name: tableCounters, Partition: attrName},
				dynamotx.Table{Name: tableEvents, Partition: attrCounter, Sort: attrEvent})
			t := totals{db: db, patterns: cfg.PerPayment}
			b.OnExternal(TopicCompleted, dynamotx.Handler{DB: db, Plan: dynamotx.JSON(t.perPayment), MaxPayload: b.MaxPayload}.External())
			b.OnExternal(TopicAdd, dynamotx.Handler{DB: db, Plan: dynamotx.JSON(t.add), MaxPayload: b.MaxPayload}.External(), handlers.Named("counters-dynamodb-add"))
			return nil
		}),
	}
}

// totals are the counters.
type totals struct {
	db       *dynamotx.DB
	patterns []string
}

// add handles counters.add.
func (t totals) add(ctx context.Context, read dynamotx.Reader, msg tally.Request, key handlers.Key) (dynamotx.Writes, error) {
	name, delta, err := msg.Check()
	if err != nil {
		return dynamotx.Writes{}, err
	}
	return t.count(ctx, read, key, []string{name}, delta)
}

// perPayment handles payments.completed.
func (t totals) perPayment(ctx context.Context, read dynamotx.Reader, p tally.Payment, key handlers.Key) (dynamotx.Writes, error) {
	names, err := p.Names(t.patterns)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	return t.count(ctx, read, key, names, 1)
}

// count adds to distinct counters.
func (t totals) count(ctx context.Context, read dynamotx.Reader, key handlers.Key, names []string, delta int64) (dynamotx.Writes, error) {
	writes := dynamotx.Writes{Result: tally.Added{Counters: names, Delta: delta}}
	for _, name := range names {
		writes.Items = append(writes.Items, t.event(name, key, delta), t.raise(name, delta))
	}
	return writes, t.possible(ctx, read, key, names, delta)
}

// possible says why the writes would fail. Their conditions say it again at the commit.
func (t totals) possible(ctx context.Context, read dynamotx.Reader, key handlers.Key, names []string, delta int64) error {
	var counters, events []dynamotx.Item
	for _, name := range names {
		counters = append(counters, dynamotx.Item{attrName: dynamotx.String(name)})
		events = append(events, eventKey(name, key))
	}
	before, err := read.GetAll(ctx, t.db.Name(tableEvents), events...)
	if err != nil {
		return err
	}
	for _, event := range before {
		if event != nil {
			return handlers.Permanent("counter-event-exists", "this key was counted before it expired from the keys table")
		}
	}
	found, err := read.GetAll(ctx, t.db.Name(tableCounters), counters...)
	if err != nil {
		return err
	}
	for _, counter := range found {
		if counter == nil {
			continue
		}
		total, err := counter.Int(attrTotal)
		if err != nil {
			return err
		}
		if total > math.MaxInt64-delta {
			return handlers.Permanent("counter-overflow", "the total would pass 9223372036854775807")
		}
	}
	return nil
}

func eventKey(name string, key handlers.Key) dynamotx.Item {
	return dynamotx.Item{attrCounter: dynamotx.String(name), attrEvent: dynamotx.String(key.String())}
}

func (t totals) event(name string, key handlers.Key, delta int64) types.TransactWriteItem {
	item := eventKey(name, key)
	item[attrDelta] = dynamotx.Int(delta)
	return types.TransactWriteItem{Put: &types.Put{
		TableName: aws.String(t.db.Name(tableEvents)), Item: item,
		ConditionExpression:      aws.String("attribute_not_exists(#counter)"),
		ExpressionAttributeNames: map[string]string{"#counter": attrCounter},
	}}
}

// raise has the service add, so that the plan holds for whatever the total is by then.
func (t totals) raise(name string, delta int64) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: aws.String(t.db.Name(tableCounters)), Key: dynamotx.Item{attrName: dynamotx.String(name)},
		UpdateExpression:          aws.String("ADD #total :delta"),
		ConditionExpression:       aws.String("attribute_not_exists(#total) OR #total <= :room"),
		ExpressionAttributeNames:  map[string]string{"#total": attrTotal},
		ExpressionAttributeValues: dynamotx.Item{":delta": dynamotx.Int(delta), ":room": dynamotx.Int(math.MaxInt64 - delta)},
	}}
}
