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

// open handles accounts.opened.
func (b *books) open(ctx context.Context, read dynamotx.Reader, msg bookkeeping.Opened, key handlers.Key) (dynamotx.Writes, error) {
	o, err := bookkeeping.CheckOpening(msg, b.equityPrefix)
	if err != nil {
		return dynamotx.Writes{}, err
	}
	writes := dynamotx.Writes{Result: o.Account()}
	first, err := read.Get(ctx, b.db.Name(tableAccounts), accountKey(o.ID))
	switch {
	case err != nil:
		return dynamotx.Writes{}, err
	case first != nil:
		return writes, sameAccount(first, o, key)
	}
	writes.Items = append(writes.Items, b.insert(tableAccounts, attrAccountID, dynamotx.Item{
		attrAccountID: dynamotx.String(o.ID), attrKey: dynamotx.String(key.String()), attrKind: dynamotx.String(o.Kind),
		attrCurrency: dynamotx.String(o.Currency), attrBalance: dynamotx.Int(o.Units), attrOpening: dynamotx.Int(o.Units),
	}))
	if o.Units == 0 {
		return writes, nil
	}
	equity := b.equityPrefix + o.Currency
	if err := b.canTake(ctx, read, equity, o.Units); err != nil {
		return dynamotx.Writes{}, err
	}
	entry := "opening:" + o.ID
	writes.Items = append(writes.Items, b.takeEquity(equity, o, key),
		b.entry(equity, entry, -o.Units, o.Currency, key), b.entry(o.ID, entry, o.Units, o.Currency, key))
	return writes, nil
}

// sameAccount passes where the account that is there was opened by this very message, whose key has expired since.
func sameAccount(first dynamotx.Item, o bookkeeping.Opening, key handlers.Key) error {
	units, err := first.Int(attrOpening)
	if err != nil {
		return err
	}
	if first.String(attrKey) != key.String() || first.String(attrCurrency) != o.Currency || first.String(attrKind) != o.Kind || units != o.Units {
		return handlers.Permanent("account-id-taken", "account_id was opened by another message")
	}
	return nil
}

// canTake says why takeEquity would fail.
func (b *books) canTake(ctx context.Context, read dynamotx.Reader, equity string, units int64) error {
	item, err := read.Get(ctx, b.db.Name(tableAccounts), accountKey(equity))
	if err != nil {
		return err
	}
	found, err := state(item)
	if err != nil {
		return err
	}
	if found.Balance < math.MinInt64+units {
		return handlers.Permanent("opening_balance", "the equity account of this currency cannot take so much")
	}
	return nil
}

// takeEquity takes the opening balance from the currency's equity account, which it makes where it is not there.
func (b *books) takeEquity(equity string, o bookkeeping.Opening, key handlers.Key) types.TransactWriteItem {
	return types.TransactWriteItem{Update: &types.Update{
		TableName: aws.String(b.db.Name(tableAccounts)), Key: accountKey(equity),
		UpdateExpression: aws.String("SET #kind = :equity, #currency = :currency, #opening = :zero, #key = if_not_exists(#key, :key)" +
			" ADD #balance :units"),
		ConditionExpression: aws.String("attribute_not_exists(#balance) OR (#kind = :equity AND #balance >= :floor)"),
		ExpressionAttributeNames: map[string]string{
			"#kind": attrKind, "#currency": attrCurrency, "#opening": attrOpening, "#key": attrKey, "#balance": attrBalance,
		},
		ExpressionAttributeValues: dynamotx.Item{
			":equity": dynamotx.String(bookkeeping.KindEquity), ":currency": dynamotx.String(o.Currency), ":key": dynamotx.String(key.String()),
			":zero": dynamotx.Int(0), ":units": dynamotx.Int(-o.Units), ":floor": dynamotx.Int(math.MinInt64 + o.Units),
		},
	}}
}

func accountKey(id string) dynamotx.Item {
	return dynamotx.Item{attrAccountID: dynamotx.String(id)}
}

// state reads an account; one that is not there has no ID.
func state(item dynamotx.Item) (a bookkeeping.State, err error) {
	if item == nil {
		return a, nil
	}
	a = bookkeeping.State{ID: item.String(attrAccountID), Currency: item.String(attrCurrency), Kind: item.String(attrKind)}
	a.Balance, err = item.Int(attrBalance)
	return a, err
}
