package dynamotx

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// Attributes of lanes and relays. A relay has a lease, its lanes have not: a lane is held by a life of a relay. A life ends for good when its relay's item is
// removed, by itself or by another relay that finds the lease over; then its lanes are free. So a renewal is one write, whatever the number of lanes.
const (
	attrToken = "token"      // S, of a lane
	attrLife  = "life"       // S, of a relay, and of a lane that it holds
	attrUntil = "live_until" // N, of a relay: milliseconds since 1970
)

// errBuried is a renewal of a relay whose life another has ended meanwhile.
var errBuried = errors.New("other relays found the lease over, again and again")

// AcquireLanes implements outbox.Source.
func (s *source) AcquireLanes(ctx context.Context, owner string, lease time.Duration) ([]outbox.Lane, error) {
	for range attempts {
		a, err := s.open(ctx)
		if err != nil {
			return nil, s.failed("acquire lanes", err)
		}
		lanes, err := s.acquire(ctx, a, owner, lease)
		if err == nil {
			return lanes, nil
		}
		if !errors.Is(err, errBuried) {
			return nil, s.failed("acquire lanes", err)
		}
	}
	return nil, s.failed("acquire lanes", errBuried)
}

func (s *source) acquire(ctx context.Context, a access, owner string, lease time.Duration) ([]outbox.Lane, error) {
	// Lanes are read before relays, and a relay is written before it takes lanes: a life that has lanes and is not among the relays is over for good.
	lanes, err := a.readLanes(ctx)
	if err != nil {
		return nil, err
	}
	relays, err := a.readRelays(ctx)
	if err != nil {
		return nil, err
	}
	life, err := s.live(ctx, a, owner, relays[owner], lease)
	if err != nil {
		return nil, err
	}
	lives := map[string]bool{life: true}
	for name, relay := range relays {
		if name == owner {
			continue
		}
		if awsclock.Left(relay.number(attrUntil), a.now.Earliest) <= 0 {
			buried, err := a.bury(ctx, name, relay)
			if err != nil {
				return nil, err
			}
			if buried {
				continue
			}
		}
		lives[relay.String(attrLife)] = true
	}
	return a.share(ctx, lanes, life, lives)
}

// readLanes returns the items of all lanes, nil for one that nobody ever had.
func (a access) readLanes(ctx context.Context) ([]Item, error) {
	var keys []Item
	for n := range outbox.Lanes {
		keys = append(keys, place(partLane(n), laneItem))
	}
	return a.GetAll(ctx, a.table, keys...)
}

// readRelays returns the items of all relays, by their owners.
func (a access) readRelays(ctx context.Context) (map[string]Item, error) {
	relays := map[string]Item{}
	err := a.query(ctx, partRelays, "", maxBatch, func(item Item) bool {
		relays[item.String(attrSort)] = item
		return true
	})
	return relays, err
}

// live renews the lease of owner's life, or begins one where it has none.
func (s *source) live(ctx context.Context, a access, owner string, old Item, lease time.Duration) (life string, err error) {
	life, condition := old.String(attrLife), "#life = :life"
	if life == "" {
		life, condition = rand.Text(), "attribute_not_exists(#life)"
	}
	term := awsclock.Term{From: a.now, Lease: lease}
	if err = a.renew(ctx, owner, life, condition, term); err != nil || !term.Short(s.db.clock) {
		return life, err
	}
	term.From, _ = s.db.clock.At(time.Now())
	return life, a.renew(ctx, owner, life, "#life = :life", term)
}

func (a access) renew(ctx context.Context, owner, life, condition string, term awsclock.Term) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := a.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &a.table, Key: place(partRelays, owner),
		UpdateExpression: new("SET #life = :life, #until = :until"), ConditionExpression: &condition,
		ExpressionAttributeNames:  map[string]string{"#life": attrLife, "#until": attrUntil},
		ExpressionAttributeValues: Item{":life": String(life), ":until": Int(term.Until())},
	})
	if errors.As(err, new(*types.ConditionalCheckFailedException)) {
		return errBuried
	}
	return err
}

// bury ends the life of a relay whose lease is over, unless it was renewed.
func (a access) bury(ctx context.Context, owner string, relay Item) (buried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err = a.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: &a.table, Key: place(partRelays, owner), ConditionExpression: new("#life = :life AND #until = :until"),
		ExpressionAttributeNames:  map[string]string{"#life": attrLife, "#until": attrUntil},
		ExpressionAttributeValues: Item{":life": relay[attrLife], ":until": relay[attrUntil]},
	})
	if errors.As(err, new(*types.ConditionalCheckFailedException)) {
		return false, nil
	}
	return err == nil, err
}

// share keeps, gives up and takes lanes until life has its share among the lives that go on.
func (a access) share(ctx context.Context, lanes []Item, life string, lives map[string]bool) ([]outbox.Lane, error) {
	share := (outbox.Lanes + len(lives) - 1) / len(lives)
	var held, wanted []outbox.Lane
	var changes []unit
	for n, lane := range lanes {
		switch {
		case lane.String(attrLife) != life:
		case len(held) < share:
			held = append(held, outbox.Lane{Number: n, Token: lane.String(attrToken)})
		default:
			changes = append(changes, a.change(n, lane, "", ""))
		}
	}
	surplus := len(changes)
	for n, lane := range lanes {
		if len(held)+len(wanted) < share && !lives[lane.String(attrLife)] {
			taken := outbox.Lane{Number: n, Token: rand.Text()}
			wanted = append(wanted, taken)
			changes = append(changes, a.change(n, lane, life, taken.Token))
		}
	}
	done, err := a.apply(ctx, nil, changes)
	if err != nil {
		return nil, err
	}
	for i, lane := range wanted {
		if done[surplus+i] {
			held = append(held, lane)
		}
	}
	return held, nil
}

// change gives a lane to a life, or to nobody, if it is still as it was.
func (a access) change(number int, was Item, life, token string) unit {
	condition := "attribute_not_exists(#token)"
	values := Item{":life": String(life), ":token": String(token)}
	if old := was.String(attrToken); old != "" {
		condition, values[":old"] = "#token = :old", String(old)
	}
	update := "SET #life = :life, #token = :token"
	if life == "" {
		update = "REMOVE #life, #token"
		delete(values, ":life")
		delete(values, ":token")
	}
	return unit{actions: []types.TransactWriteItem{{Update: &types.Update{
		TableName: &a.table, Key: place(partLane(number), laneItem), UpdateExpression: &update, ConditionExpression: &condition,
		ExpressionAttributeNames: map[string]string{"#life": attrLife, "#token": attrToken}, ExpressionAttributeValues: values,
	}}}}
}

// ReleaseLanes implements outbox.Source: it ends owner's life.
func (s *source) ReleaseLanes(ctx context.Context, owner string) error {
	a, err := s.open(ctx)
	if err != nil {
		return s.failed("release lanes", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if _, err := a.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &a.table, Key: place(partRelays, owner)}); err != nil {
		return s.failed("release lanes", err)
	}
	return nil
}
