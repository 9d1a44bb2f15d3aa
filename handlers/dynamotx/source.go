package dynamotx

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// outboxTable is the last part of the name of the table that has the outgoing messages. Its items, by partition and sort key:
//
//	"07"           "#lane"   a lane: who holds it, and the token
//	"07"           an id     a record of that lane, in the order of the ids
//	"07#count"     "#count"  how many ids the lane has given
//	"body#" an id  "00", …   what does not fit into the record
//	"aside"        an id     a record that is set aside
//	"relays"       an owner  a relay that lives, and until when
//
// A lane and its records are one partition, so that one consistent query reads the token with them.
const outboxTable = "outbox"

const (
	attrPartition = "lane"   // S
	attrSort      = "record" // S

	laneItem     = "#lane" // sorts before the digits of all ids
	countItem    = "#count"
	partAside    = "aside"
	partRelays   = "relays"
	defaultLimit = 100
)

func partLane(lane int) string  { return fmt.Sprintf("%02d", lane) }
func partCount(lane int) string { return partLane(lane) + countItem }
func partBody(id int64) string  { return "body#" + sortID(id) }
func sortID(id int64) string    { return fmt.Sprintf("%019d", id) }
func sortPart(n int) string     { return fmt.Sprintf("%02d", n) }

// place is the key of an item.
func place(partition, sort string) Item {
	return Item{attrPartition: String(partition), attrSort: String(sort)}
}

// source is the relay's side of the messages that wait in the outbox table.
type source struct {
	db   *DB
	wake chan struct{}
}

var _ outbox.Source = (*source)(nil)

func newSource(db *DB) *source { return &source{db: db, wake: make(chan struct{}, 1)} }

// Wake implements outbox.Source. It tells of commits of this process.
func (s *source) Wake() <-chan struct{} { return s.wake }

// committed wakes the relay.
func (s *source) committed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// access is a client, and the service's time as far as it is known.
type access struct {
	reader
	table string
	now   awsclock.Instant
}

// open returns what an operation needs.
func (s *source) open(ctx context.Context) (access, error) {
	client, err := s.db.ready(ctx)
	if err != nil {
		return access{}, err
	}
	now, known := s.db.clock.At(time.Now())
	if !known {
		return access{}, awsclock.ErrNoDate
	}
	return access{reader{client}, s.db.Name(outboxTable), now}, nil
}

// failed says what was being done. A table that is gone is looked for again the next time.
func (s *source) failed(doing string, err error) error {
	if missingTable(err) {
		s.db.distrust()
	}
	return fmt.Errorf("%s of table %s: %w", doing, s.db.Name(outboxTable), err)
}

// query reads a partition in the order of its sort keys, up to last where that is set, until see returns false. The first page has first items.
func (a access) query(ctx context.Context, partition, last string, first int32, see func(Item) bool) error {
	input := &dynamodb.QueryInput{
		TableName: &a.table, ConsistentRead: new(true), Limit: &first,
		KeyConditionExpression:    new("#lane = :lane"),
		ExpressionAttributeNames:  map[string]string{"#lane": attrPartition},
		ExpressionAttributeValues: Item{":lane": String(partition)},
	}
	if last != "" {
		input.KeyConditionExpression = new("#lane = :lane AND #record <= :last")
		input.ExpressionAttributeNames["#record"] = attrSort
		input.ExpressionAttributeValues[":last"] = String(last)
	}
	for {
		out, err := a.queryPage(ctx, input)
		if err != nil {
			return err
		}
		for _, item := range out.Items {
			if !see(item) {
				return nil
			}
		}
		if out.LastEvaluatedKey == nil {
			return nil
		}
		input.ExclusiveStartKey = out.LastEvaluatedKey
		input.Limit = nil // what is passed over is passed over quickly
	}
}

func (a access) queryPage(ctx context.Context, input *dynamodb.QueryInput) (*dynamodb.QueryOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return a.client.Query(ctx, input)
}
