package dynamotx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	// attempts is how often a message is planned before its contention is a failure, and how often an unanswered request is sent.
	attempts = 10
	sendings = 3
	// answerWithin is how long one request may take.
	answerWithin = 10 * time.Second
)

// commit is one call of a handler.
type commit struct {
	Handler
	client *dynamodb.Client
	msg    *message.Message
	key    handlers.Key
	id     string
	// doubt is whether a transaction of this call may have committed, or still may.
	doubt bool
}

// run plans and commits until the message is done, by this call or by another, or an error says how to go on.
func (c *commit) run(ctx context.Context) (outcome, error) {
	for n := 1; ; n++ {
		done, err := c.once(ctx)
		switch {
		case err == nil:
			return done, nil
		case !errors.Is(err, errContended):
			return outcome{}, c.final(err)
		case n == attempts || !pause(ctx, n):
			return outcome{}, c.final(errors.Join(fmt.Errorf("%w, %d times", err, n), ctx.Err()))
		}
	}
}

// final is an error to return: what it says of the last attempt does not count where an earlier one may have committed.
func (c *commit) final(err error) error {
	if c.doubt {
		return handlers.Unknown(err)
	}
	if missingTable(err) {
		c.DB.distrust()
	}
	return err
}

func (c *commit) once(ctx context.Context) (outcome, error) {
	copied := c.msg.Copy()
	copied.SetContext(ctx)
	writes, err := c.Plan(ctx, reader{c.client}, copied, c.key)
	if err != nil {
		return c.planFailed(ctx, err)
	}
	done, input, err := c.transaction(ctx, writes)
	if err != nil {
		return c.planFailed(ctx, err)
	}
	if done, err = c.send(ctx, input, done); err != nil {
		return c.planFailed(ctx, err)
	}
	return done, nil
}

// planFailed believes a lasting refusal, the plan's or the service's, only where the message is not done already: a plan that sees its own
// effect may take it for another's, and write what cannot be written.
func (c *commit) planFailed(ctx context.Context, failure error) (outcome, error) {
	var lasting interface{ Permanent() string }
	if !errors.As(failure, &lasting) {
		return outcome{}, failure
	}
	done, known, err := reader{c.client}.lookUp(ctx, c.DB.keys(), c.id)
	switch {
	case err != nil:
		return outcome{}, err
	case known:
		return done, nil
	}
	return outcome{}, failure
}

// transaction joins the plan's writes with the key and the outgoing messages.
func (c *commit) transaction(ctx context.Context, writes Writes) (outcome, *dynamodb.TransactWriteItemsInput, error) {
	done, err := newOutcome(writes)
	if err != nil {
		return done, nil, err
	}
	for _, item := range writes.Items {
		if c.DB.own(tableOf(item)) {
			return done, nil, invalid("a plan may not write to the table %s", tableOf(item))
		}
	}
	records, err := c.records(ctx, writes.Outgoing)
	if err != nil {
		return done, nil, err
	}
	done.messages = len(records)
	outgoing, err := c.DB.source.actions(ctx, records)
	if err != nil {
		return done, nil, err
	}
	actions := slices.Concat([]types.TransactWriteItem{done.put(c.DB.keys(), c.id, time.Now(), c.DB.cfg.Retention)}, writes.Items, outgoing)
	return done, &dynamodb.TransactWriteItemsInput{TransactItems: actions, ClientRequestToken: aws.String(envelope.NewUUID())}, check(actions)
}

func tableOf(a types.TransactWriteItem) string {
	switch {
	case a.Put != nil:
		return text(a.Put.TableName)
	case a.Update != nil:
		return text(a.Update.TableName)
	case a.Delete != nil:
		return text(a.Delete.TableName)
	case a.ConditionCheck != nil:
		return text(a.ConditionCheck.TableName)
	}
	return ""
}

// send sends the transaction, again under its token where no answer came. The SDK's own retries are off, because they hide that.
func (c *commit) send(ctx context.Context, input *dynamodb.TransactWriteItemsInput, done outcome) (outcome, error) {
	for n := 1; ; n++ {
		err := c.request(ctx, input)
		if err == nil {
			if done.messages > 0 {
				c.DB.source.committed()
			}
			return done, nil
		}
		if !unanswered(err) {
			return c.answered(err)
		}
		c.doubt = true
		if n == sendings || !pause(ctx, n) {
			return outcome{}, fmt.Errorf("write to DynamoDB: %w", err)
		}
	}
}

func (c *commit) request(ctx context.Context, input *dynamodb.TransactWriteItemsInput) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := c.client.TransactWriteItems(ctx, input, func(o *dynamodb.Options) { o.RetryMaxAttempts = 1 })
	return err
}

// answered is what a refusal means: the message was done before where it is the key that is taken.
func (c *commit) answered(err error) (outcome, error) {
	var cancelled *types.TransactionCanceledException
	if errors.As(err, &cancelled) && len(cancelled.CancellationReasons) > 0 {
		if of := cancelled.CancellationReasons[0]; text(of.Code) == conditionFailed && len(of.Item) > 0 {
			return readOutcome(of.Item), nil
		}
	}
	return outcome{}, refused(err)
}

// pause waits before the attempt after the n-th, and reports false where ctx ended first.
func pause(ctx context.Context, n int) bool {
	longest := min(20*time.Millisecond<<n, time.Second)
	t := time.NewTimer(rand.N(longest) + time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
