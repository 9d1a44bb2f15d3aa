package dynamostore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// maxRounds bounds the steps over a key that changes between them.
const maxRounds = 8

// errChanges is contention: others changed the key each time.
var errChanges = errors.New("the key changes all the time")

// Acquire implements keystore.Leasing. Each claim is a step of its own.
func (s *Store) Acquire(ctx context.Context, owner string, claims []keystore.Claim, lease time.Duration) ([]keystore.Verdict, error) {
	verdicts := make([]keystore.Verdict, len(claims))
	for i, c := range claims {
		v, err := s.acquire(ctx, attempt{Claim: c, owner: owner, token: rand.Text(), lease: lease})
		if err != nil {
			return nil, fmt.Errorf("acquire a key: %w", err)
		}
		verdicts[i] = v
	}
	return verdicts, nil
}

// attempt is one claim of one owner.
type attempt struct {
	keystore.Claim
	owner, token string
	lease        time.Duration
}

func (s *Store) acquire(ctx context.Context, a attempt) (keystore.Verdict, error) {
	for range maxRounds {
		now, err := s.now(ctx)
		if err != nil {
			return keystore.Verdict{}, err
		}
		term := awsclock.Term{From: now, Lease: a.lease}
		old, err := s.insert(ctx, a, now, term)
		if err != nil {
			return keystore.Verdict{}, err
		}
		var v keystore.Verdict
		var done bool
		if old == nil {
			v, done, err = s.granted(ctx, a, term, view{})
		} else {
			v, done, err = s.meet(ctx, a, *old)
		}
		if done || err != nil {
			return v, err
		}
	}
	return keystore.Verdict{}, errChanges
}

// vacant is a key that anybody may have: it is absent, or it is completed and its time is over, or it was in another epoch.
const vacant = "attribute_not_exists(#id) OR #state = :completed AND (#epoch <> :epoch OR #expires_at <= :now)"

// insert takes a key that is vacant. Another one is returned as it stood.
func (s *Store) insert(ctx context.Context, a attempt, now awsclock.Instant, t awsclock.Term) (*view, error) {
	fresh := values{
		keyAttribute: name(a.ID), "state": text(string(keystore.InProgress)), "fingerprint": text(a.Fingerprint), "owner": text(a.owner), "token": text(a.token),
		"lease_until": until(t), "lease": length(t), "takeovers": number(0), "first_at": number(now.Latest.UnixMilli()),
	}
	return s.put(ctx, fresh, now, a.Epoch)
}

// put writes an item in the place of a vacant key.
func (s *Store) put(ctx context.Context, fresh values, now awsclock.Instant, epoch string) (*view, error) {
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.cfg.Table, Item: fresh, ConditionExpression: new(vacant), ExpressionAttributeNames: names(vacant),
		ExpressionAttributeValues: values{
			":completed": text(string(keystore.Completed)), ":epoch": text(epoch), ":now": number(now.Earliest.Unix()),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	return s.refused(err)
}

// refused is what a condition found instead of what it asked for; nil where it found that.
func (s *Store) refused(err error) (*view, error) {
	if unmet := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &unmet) {
		v, known := s.seen(unmet.Item)
		if !known {
			return nil, awsclock.ErrNoDate
		}
		return &v, nil
	}
	return nil, err
}

// meet answers a claim that met a key. done is false where the key has changed, or is vacant by now.
func (s *Store) meet(ctx context.Context, a attempt, old view) (v keystore.Verdict, done bool, err error) {
	v.Record = old.record(a.ID)
	same := envelope.SameFingerprint(a.Fingerprint, v.Record.Fingerprint)
	mine := v.Record.Owner == a.owner
	switch {
	case v.Record.State == keystore.Absent, v.Record.State == keystore.Completed && v.Record.Epoch != a.Epoch:
		return v, false, nil
	case !same:
		v.Outcome = keystore.Mismatch
	case v.Record.State == keystore.Completed:
		v.Outcome = keystore.Duplicate
	case !mine && old.left() > 0:
		v.Outcome = keystore.Busy
	default:
		return s.take(ctx, a, old)
	}
	return v, true, nil
}

// take gives an owner its own lease again, whose answer was lost, or one of somebody else that is over.
func (s *Store) take(ctx context.Context, a attempt, old view) (keystore.Verdict, bool, error) {
	now, err := s.now(ctx)
	if err != nil {
		return keystore.Verdict{}, false, err
	}
	set := "SET #lease_until = :until, #lease = :lease"
	with := values{}
	if textOf(old.values, "owner") == a.owner {
		a.token = textOf(old.values, "token")
	} else {
		set += ", #owner = :owner, #token = :token, #takeovers = #takeovers + :one"
		with[":owner"], with[":token"], with[":one"] = text(a.owner), text(a.token), number(1)
	}
	t := awsclock.Term{From: now, Lease: a.lease}
	with[":until"], with[":lease"] = until(t), length(t)
	with[":seen"] = old.values["lease_until"]
	changed, err := s.update(ctx, a.ID, textOf(old.values, "token"), set, "#lease_until = :seen", with)
	if err != nil || changed != nil {
		return keystore.Verdict{}, false, err
	}
	if a.token != textOf(old.values, "token") {
		old.values["takeovers"] = number(numberOf(old.values, "takeovers") + 1)
	}
	return s.granted(ctx, a, t, old)
}

// granted is the verdict for a key that is the caller's now. done is false where its lease was written too short, and somebody has taken it already.
func (s *Store) granted(ctx context.Context, a attempt, t awsclock.Term, old view) (v keystore.Verdict, done bool, err error) {
	v = keystore.Verdict{Outcome: keystore.Fresh, Token: a.token, Record: keystore.Record{ID: a.ID}}
	if old.values != nil {
		old.values["owner"], old.values["lease_until"], old.values["lease"] = text(a.owner), until(t), length(t)
		v.Record = old.record(a.ID)
	}
	if v.Record.Takeovers > 0 {
		v.Outcome = keystore.TakenOver
	}
	if !t.Short(s.clock) {
		return v, true, nil
	}
	if _, err = s.renew(ctx, a.ID, a.token, a.lease); errors.Is(err, keystore.ErrLeaseLost) {
		return keystore.Verdict{}, false, nil
	}
	return v, true, err
}
