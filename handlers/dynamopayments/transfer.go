package dynamopayments

import (
	"context"
	"math"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
)

// pay handles payments.requested.
func (b *books) pay(ctx context.Context, read dynamotx.Reader, msg bookkeeping.Requested, key handlers.Key) (dynamotx.Writes, error) {
	t, err := bookkeeping.CheckTransfer(msg)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	first, err := read.Get(ctx, b.db.Name(tablePayments), dynamotx.Item{attrPaymentID: dynamotx.String(t.PaymentID)})
	if err != nil {
		return dynamotx.Writes{}, err
	}
	if first != nil {
		return recorded(first, t, key)
	}
	from, to, err := b.accounts(ctx, read, t)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	reason, err := bookkeeping.Decide(from, to, t.Units)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	outcome := t.Outcome(reason)
	writes := dynamotx.Writes{Result: outcome, Items: []types.TransactWriteItem{b.payment(t, outcome, key)}}
	if outcome.Status == bookkeeping.Declined {
		writes.Items = append(writes.Items, b.withoutFunds(from, t.Units))
		writes.Outgoing = []dynamotx.Outgoing{{Topic: TopicDeclined, Payload: outcome}}
		return writes, nil
	}
	entry := "payment:" + t.PaymentID
	writes.Items = append(writes.Items,
		b.debit(from, t.Units), b.credit(to, t.Units),
		b.entry(t.From, entry, -t.Units, t.Currency, key), b.entry(t.To, entry, t.Units, t.Currency, key))
	writes.Outgoing = []dynamotx.Outgoing{{Topic: TopicCompleted, Payload: outcome}}
	return writes, nil
}

// recorded is the outcome of the payment that has this id already, where it is this very message's, whose key has expired since.
func recorded(first dynamotx.Item, t bookkeeping.Transfer, key handlers.Key) (dynamotx.Writes, error) {
	units, err := first.Int(attrAmount)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	if first.String(attrKey) != key.String() || first.String(attrFrom) != t.From || first.String(attrTo) != t.To ||
		units != t.Units || first.String(attrCurrency) != t.Currency {
		return dynamotx.Writes{}, handlers.Permanent("payment-id-taken", "payment_id was used by another message")
	}
	return dynamotx.Writes{Result: t.Outcome(first.String(attrReason))}, nil
}

// accounts reads both accounts and checks that they can take part.
func (b *books) accounts(ctx context.Context, read dynamotx.Reader, t bookkeeping.Transfer) (from, to bookkeeping.State, err error) {
	items, err := read.GetAll(ctx, b.db.Name(tableAccounts), accountKey(t.From), accountKey(t.To))
	if err != nil {
		return from, to, err
	}
	if from, err = state(items[0]); err != nil {
		return from, to, err
	}
	if to, err = state(items[1]); err != nil {
		return from, to, err
	}
	if err := bookkeeping.Usable("from", from, t.Currency); err != nil {
		return from, to, err
	}
	return from, to, bookkeeping.Usable("to", to, t.Currency)
}

func (b *books) payment(t bookkeeping.Transfer, o bookkeeping.Outcome, key handlers.Key) types.TransactWriteItem {
	item := dynamotx.Item{
		attrPaymentID: dynamotx.String(t.PaymentID), attrKey: dynamotx.String(key.String()),
		attrFrom: dynamotx.String(t.From), attrTo: dynamotx.String(t.To),
		attrAmount: dynamotx.Int(t.Units), attrCurrency: dynamotx.String(t.Currency), attrStatus: dynamotx.String(string(o.Status)),
	}
	if o.Reason != "" {
		item[attrReason] = dynamotx.String(o.Reason)
	}
	return b.insert(tablePayments, attrPaymentID, item)
}

// insert puts an item that is not there yet.
func (b *books) insert(table, partition string, item dynamotx.Item) types.TransactWriteItem {
	return types.TransactWriteItem{Put: &types.Put{
		TableName: aws.String(b.db.Name(table)), Item: item,
		ConditionExpression: aws.String("attribute_not_exists(#id)"), ExpressionAttributeNames: map[string]string{"#id": partition},
	}}
}

// entry is a line of the ledger. Its payment or account is new in the same transaction, and so it is.
func (b *books) entry(account, of string, units int64, currency string, key handlers.Key) types.TransactWriteItem {
	return b.insert(tableLedger, attrAccountID, dynamotx.Item{
		attrAccountID: dynamotx.String(account), attrEntry: dynamotx.String(of), attrKey: dynamotx.String(key.String()),
		attrAmount: dynamotx.Int(units), attrCurrency: dynamotx.String(currency),
	})
}

// debit takes units from an account that may not go below its floor.
func (b *books) debit(a bookkeeping.State, units int64) types.TransactWriteItem {
	floor := math.MinInt64 + units
	if a.Kind == bookkeeping.KindCustomer {
		floor = units
	}
	return b.move(a, -units, "#balance >= :bound", floor)
}

func (b *books) credit(a bookkeeping.State, units int64) types.TransactWriteItem {
	return b.move(a, units, "#balance <= :bound", math.MaxInt64-units)
}

// move has the service add, so that the plan holds for whatever the balance is by then, within its bound. An account's kind and
// currency never change.
func (b *books) move(a bookkeeping.State, units int64, condition string, bound int64) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: aws.String(b.db.Name(tableAccounts)), Key: accountKey(a.ID),
		UpdateExpression: aws.String("ADD #balance :units"), ConditionExpression: aws.String(condition),
		ExpressionAttributeNames:  map[string]string{"#balance": attrBalance},
		ExpressionAttributeValues: dynamotx.Item{":units": dynamotx.Int(units), ":bound": dynamotx.Int(bound)},
	}}
}

// withoutFunds checks that the payment is still to be declined.
func (b *books) withoutFunds(a bookkeeping.State, units int64) types.TransactWriteItem {
	return types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: aws.String(b.db.Name(tableAccounts)), Key: accountKey(a.ID),
		ConditionExpression:       aws.String("#balance < :units"),
		ExpressionAttributeNames:  map[string]string{"#balance": attrBalance},
		ExpressionAttributeValues: dynamotx.Item{":units": dynamotx.Int(units)},
	}}
}
