package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// instant is a moment of this process in the service's time.
type instant struct {
	local            time.Time
	earliest, latest time.Time
}

var errNoDate = errors.New("the service's answers have no Date, which leases need: let the endpoint pass it on")

// now asks the service something, where nothing was asked before: its answer has the time.
func (s *Store) now(ctx context.Context) (instant, error) {
	if err := s.prepare(ctx); err != nil {
		return instant{}, err
	}
	local := time.Now()
	earliest, latest, known := s.clock.between(local)
	if known {
		return instant{local, earliest, latest}, nil
	}
	if _, err := s.read(ctx, keystore.ID{}); err != nil {
		return instant{}, err
	}
	local = time.Now()
	earliest, latest, _ = s.clock.between(local)
	return instant{local, earliest, latest}, nil
}

// givenBack is the lease below which one is over at once: who asks for so little gives it back, and the clock could not tell it apart.
const givenBack = 100 * time.Millisecond

// term is a lease from a moment on. It ends when it does by the latest that the service's time may have been.
type term struct {
	from  instant
	lease time.Duration
}

func (t term) until() types.AttributeValue {
	if t.lease < givenBack {
		return number(0)
	}
	return number(t.from.latest.Add(t.lease).UnixMilli())
}

func (t term) length() types.AttributeValue { return number(t.lease.Milliseconds()) }

// short reports that the lease ends too early: the answer showed a later time than was believed, because this machine was suspended, or it
// came late, to a request that was sent again.
func (t term) short(c *clock) bool {
	if t.lease < givenBack {
		return false
	}
	earliest, _, _ := c.between(t.from.local)
	return earliest.After(t.from.latest.Add(skew/2)) || time.Since(t.from.local) > t.lease/4
}

// update changes the key in progress that has the token, if also holds. What it found instead is returned.
func (s *Store) update(ctx context.Context, id keystore.ID, token, set, also string, with values) (*view, error) {
	condition := "#token = :held AND #state = :in_progress"
	if also != "" {
		condition += " AND " + also
	}
	with[":held"], with[":in_progress"] = text(token), text(string(keystore.InProgress))
	_, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: &s.cfg.Table, Key: values{keyAttribute: name(id)}, UpdateExpression: &set, ConditionExpression: &condition,
		ExpressionAttributeNames: names(set, condition), ExpressionAttributeValues: with,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	return s.refused(err)
}

// Renew implements keystore.Leasing.
func (s *Store) Renew(ctx context.Context, id keystore.ID, token string, lease time.Duration) error {
	again, err := s.renew(ctx, id, token, lease)
	if err == nil && again {
		_, err = s.renew(ctx, id, token, lease)
	}
	if err != nil {
		return fmt.Errorf("renew a lease: %w", err)
	}
	return nil
}

func (s *Store) renew(ctx context.Context, id keystore.ID, token string, lease time.Duration) (short bool, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return false, err
	}
	t := term{now, lease}
	found, err := s.update(ctx, id, token, "SET #lease_until = :until, #lease = :lease", "", values{":until": t.until(), ":lease": t.length()})
	if err == nil && found != nil {
		err = keystore.ErrLeaseLost
	}
	return t.short(s.clock), err
}
