package dynamostore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Complete implements keystore.Leasing. Each completion is a step of its own. Only completed keys are kept here: any other state ends the
// lease and leaves no key behind.
func (s *Store) Complete(ctx context.Context, completions []keystore.Completion) error {
	for _, c := range completions {
		if c.State != keystore.Completed {
			if err := s.remove(ctx, c.Claim.ID, c.Claim.Token); err != nil {
				return fmt.Errorf("end a lease: %w", err)
			}
			continue
		}
		if err := s.complete(ctx, c); err != nil {
			return fmt.Errorf("complete a key: %w", err)
		}
	}
	return nil
}

func (s *Store) complete(ctx context.Context, c keystore.Completion) error {
	if err := checkResult(c); err != nil {
		return err
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	set, with := "SET #state = :completed, #epoch = :epoch, #processed_at = :at, #expires_at = :expires", values{
		":completed": text(string(keystore.Completed)), ":epoch": text(c.Claim.Epoch), ":at": number(now.Latest.UnixMilli()), ":expires": expiry(now, c.Retention),
	}
	if c.Owner != "" {
		set += ", #owner = :owner"
		with[":owner"] = text(c.Owner)
	}
	if c.Result != nil {
		set += ", #result = :result"
		with[":result"] = blob(c.Result)
	}
	found, err := s.update(ctx, c.Claim.ID, c.Claim.Token, set+" REMOVE #lease_until, #lease, #takeovers, #first_at", "", with)
	if err != nil || found == nil {
		return err
	}
	if textOf(found.values, "token") == c.Claim.Token && textOf(found.values, "state") == string(keystore.Completed) {
		return nil // by this call, whose answer was lost
	}
	return keystore.ErrLeaseLost
}

// expiry is the first second at which a retention from now on is over for sure.
func expiry(now awsclock.Instant, retention time.Duration) types.AttributeValue {
	return number(now.Latest.Add(retention + time.Second - 1).Unix())
}

var errResult = errors.New("the result is not JSON")

func checkResult(c keystore.Completion) error {
	switch {
	case len(c.Result) > keystore.MaxResult:
		return fmt.Errorf("%d bytes: %w", len(c.Result), keystore.ErrResultTooLarge)
	case c.Result != nil && !json.Valid(c.Result):
		return fmt.Errorf("scope %s: %w", c.Claim.Scope, errResult)
	}
	return nil
}

// remove leaves no key behind of the lease that has the token.
func (s *Store) remove(ctx context.Context, id keystore.ID, token string) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	condition := "#token = :held AND #state = :in_progress"
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: &s.cfg.Table, Key: values{keyAttribute: name(id)}, ConditionExpression: &condition, ExpressionAttributeNames: names(condition),
		ExpressionAttributeValues: values{":held": text(token), ":in_progress": text(string(keystore.InProgress))},
	})
	if unmet := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &unmet) {
		return keystore.ErrLeaseLost
	}
	return err
}

// Release implements keystore.Leasing.
func (s *Store) Release(ctx context.Context, id keystore.ID, token string) error {
	if err := s.remove(ctx, id, token); err != nil && !errors.Is(err, keystore.ErrLeaseLost) {
		return fmt.Errorf("release a lease: %w", err)
	}
	return nil
}

// Note implements keystore.Elsewhere.
func (s *Store) Note(ctx context.Context, completions []keystore.Completion) error {
	for _, c := range completions {
		if err := s.note(ctx, c); err != nil {
			return fmt.Errorf("note a completed key: %w", err)
		}
	}
	return nil
}

func (s *Store) note(ctx context.Context, c keystore.Completion) error {
	if err := checkResult(c); err != nil {
		return err
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	fresh := values{
		keyAttribute: name(c.Claim.ID), "state": text(string(keystore.Completed)), "fingerprint": text(c.Claim.Fingerprint), "owner": text(c.Owner),
		"token": text(""), "epoch": text(c.Claim.Epoch), "processed_at": number(now.Latest.UnixMilli()), ttlAttribute: expiry(now, c.Retention),
	}
	if c.Result != nil {
		fresh["result"] = blob(c.Result)
	}
	_, err = s.put(ctx, fresh, now, c.Claim.Epoch) // a key that is there stays as it is
	return err
}
