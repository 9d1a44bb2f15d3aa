package dynamotx

import (
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/handlers"
)

// Limits of the service.
const (
	maxActions     = 100
	maxItem        = 400 << 10
	maxTransaction = 4 << 20
	// maxResult is what the engine keeps of a result.
	maxResult = 64 << 10
)

// tooLarge is what does not fit into a transaction.
func tooLarge(format string, args ...any) error {
	return handlers.Permanentf("dynamodb-too-large", format, args...)
}

// invalid is what no retry makes acceptable.
func invalid(format string, args ...any) error {
	return handlers.Permanentf("dynamodb-invalid", format, args...)
}

// check refuses a transaction that the service would refuse, where that can be counted here.
func check(actions []types.TransactWriteItem) error {
	if len(actions) > maxActions {
		return tooLarge("the message needs %d writes in one transaction, with its key and its outgoing messages; DynamoDB takes %d", len(actions), maxActions)
	}
	total := 0
	for n, action := range actions {
		if ops(action) != 1 {
			return invalid("write %d of the plan is not exactly one of Put, Update, Delete and ConditionCheck", n)
		}
		size := actionSize(action)
		if action.Put != nil && itemSize(action.Put.Item) > maxItem {
			return tooLarge("an item for table %s has more than %d bytes", tableOf(action), maxItem)
		}
		total += size
	}
	if total > maxTransaction {
		return tooLarge("the items of the transaction have more than %d bytes together", maxTransaction)
	}
	return nil
}

func ops(a types.TransactWriteItem) (n int) {
	for _, set := range []bool{a.Put != nil, a.Update != nil, a.Delete != nil, a.ConditionCheck != nil} {
		if set {
			n++
		}
	}
	return n
}

// actionSize counts a Put whole; of the others only what travels, as the items that they meet are the service's to know.
func actionSize(a types.TransactWriteItem) int {
	switch {
	case a.Put != nil:
		return itemSize(a.Put.Item)
	case a.Update != nil:
		return itemSize(a.Update.Key) + itemSize(a.Update.ExpressionAttributeValues)
	case a.Delete != nil:
		return itemSize(a.Delete.Key)
	}
	return itemSize(a.ConditionCheck.Key)
}

// itemSize is an item's size as the service counts it, or a little less: what passes here in vain the service refuses, for good as well.
func itemSize(item map[string]types.AttributeValue) (n int) {
	for name, value := range item {
		n += len(name) + valueSize(value)
	}
	return n
}

func valueSize(value types.AttributeValue) int {
	const header = 3
	switch v := value.(type) {
	case *types.AttributeValueMemberS:
		return len(v.Value)
	case *types.AttributeValueMemberB:
		return len(v.Value)
	case *types.AttributeValueMemberN:
		return numberSize(v.Value)
	case *types.AttributeValueMemberSS:
		return sum(v.Value, func(s string) int { return len(s) })
	case *types.AttributeValueMemberNS:
		return sum(v.Value, numberSize)
	case *types.AttributeValueMemberBS:
		return sum(v.Value, func(b []byte) int { return len(b) })
	case *types.AttributeValueMemberL:
		return header + sum(v.Value, func(e types.AttributeValue) int { return 1 + valueSize(e) })
	case *types.AttributeValueMemberM:
		return header + len(v.Value) + itemSize(v.Value)
	}
	return 1
}

// numberSize is a byte for each two digits, and one.
func numberSize(s string) int { return min(len(s)/2+1, 21) }

func sum[T any](list []T, size func(T) int) (n int) {
	for _, element := range list {
		n += size(element)
	}
	return n
}
