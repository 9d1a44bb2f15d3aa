package dynamotx

import (
	"encoding/json"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Attributes of the keys table.
const (
	attrID      = "id"         // S: Key.String()
	attrResult  = "result"     // S: JSON
	attrDone    = "done_at"    // N: seconds since 1970
	attrExpires = "expires_at" // N: seconds since 1970; also the service's time to live
)

// slack is for clocks that differ: no key ends before its retention by any of them.
const slack = time.Hour

// outcome is what a message's transaction leaves with its key.
type outcome struct {
	result json.RawMessage // nil for none
	// messages is how many messages go out with it; of a key that was done before it is not known.
	messages int
}

func newOutcome(w Writes) (o outcome, err error) {
	if w.Result != nil {
		if o.result, err = json.Marshal(w.Result); err != nil {
			return o, invalid("the result has no JSON form")
		}
	}
	if len(o.result) > maxResult {
		return o, tooLarge("the result has more than %d bytes", maxResult)
	}
	return o, nil
}

// value is the result for the engine.
func (o outcome) value() any {
	if o.result == nil {
		return nil
	}
	return o.result
}

// put writes the key's item. Its condition is the fence: of all that ever run this message, the first commits, until the key has expired.
func (o outcome) put(table, id string, now time.Time, retention time.Duration) types.TransactWriteItem {
	item := Item{attrID: String(id), attrDone: Int(now.Unix()), attrExpires: Int(now.Add(retention + slack).Unix())}
	if o.result != nil {
		item[attrResult] = String(string(o.result))
	}
	return types.TransactWriteItem{Put: &types.Put{
		TableName: aws.String(table), Item: item,
		ConditionExpression:                 aws.String("attribute_not_exists(#id) OR #expires <= :now"),
		ExpressionAttributeNames:            map[string]string{"#id": attrID, "#expires": attrExpires},
		ExpressionAttributeValues:           Item{":now": Int(now.Unix())},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}
}

// readOutcome is what a key's item says.
func readOutcome(item Item) (o outcome) {
	if text := item.String(attrResult); text != "" {
		o.result = json.RawMessage(text)
	}
	return o
}

// expired reports whether a key's item counts as absent. The service removes it later.
func expired(item Item, now time.Time) bool {
	expires, err := item.Int(attrExpires)
	return err == nil && expires <= now.Unix()
}
