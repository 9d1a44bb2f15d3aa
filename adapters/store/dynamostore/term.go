package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// now asks the service something, where nothing was asked before: its answer has the time.
func (s *Store) now(ctx context.Context) (awsclock.Instant, error) {
	if err := s.prepare(ctx); err != nil {
		return awsclock.Instant{}, err
	}
	if now, known := s.clock.At(time.Now()); known {
		return now, nil
	}
	if _, err := s.read(ctx, keystore.ID{}); err != nil {
		return awsclock.Instant{}, err
	}
	now, _ := s.clock.At(time.Now())
	return now, nil
}

// until is the end of a lease as an attribute, length its length.
func until(t awsclock.Term) types.AttributeValue { return number(t.Until()) }

func length(t awsclock.Term) types.AttributeValue { return number(t.Lease.Milliseconds()) }

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
	t := awsclock.Term{From: now, Lease: lease}
	found, err := s.update(ctx, id, token, "SET #lease_until = :until, #lease = :lease", "", values{":until": until(t), ":lease": length(t)})
	if err == nil && found != nil {
		err = keystore.ErrLeaseLost
	}
	return t.Short(s.clock), err
}
