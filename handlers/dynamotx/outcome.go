package dynamotx

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Attributes of the keys table.
const (
	attrID       = "id"         // S: Key.String(), with "#n" for a part
	attrResult   = "result"     // S: JSON
	attrOutgoing = "outgoing"   // B: JSON of the messages, or a part of it
	attrParts    = "parts"      // N: how many items have the messages, where they do not fit into this one
	attrDone     = "done_at"    // N: seconds since 1970
	attrExpires  = "expires_at" // N: seconds since 1970; also the service's time to live
)

const (
	// inlined is how many bytes of messages stand in the key's own item, beside a result of any size. Emulators count the bytes as
	// base64, which takes a third more.
	inlined = 240 << 10
	// partSize is how many bytes an item for messages has.
	partSize = 256 << 10
	// slack is for clocks that differ: no key ends before its retention by any of them.
	slack = time.Hour
)

// outcome is what a message's transaction leaves.
type outcome struct {
	result   json.RawMessage // nil for none
	outgoing []stored
	parts    int // of outgoing, not read yet
}

func newOutcome(w Writes, maxPayload int) (o outcome, err error) {
	if w.Result != nil {
		if o.result, err = json.Marshal(w.Result); err != nil {
			return o, invalid("the result has no JSON form")
		}
	}
	if len(o.result) > maxResult {
		return o, tooLarge("the result has more than %d bytes", maxResult)
	}
	o.outgoing, err = store(w.Outgoing, maxPayload)
	return o, err
}

// value is the result for the engine.
func (o outcome) value() any {
	if o.result == nil {
		return nil
	}
	return o.result
}

// actions writes the key's item, first, and those of messages that do not fit into it. The condition on the key's item is the fence: of all
// that ever run this message, the first commits, until the key has expired.
func (o outcome) actions(table, id string, now time.Time, retention time.Duration) ([]types.TransactWriteItem, error) {
	expires := Int(now.Add(retention + slack).Unix())
	item := Item{attrID: String(id), attrDone: Int(now.Unix()), attrExpires: expires}
	if o.result != nil {
		item[attrResult] = String(string(o.result))
	}
	actions := []types.TransactWriteItem{{Put: &types.Put{
		TableName: aws.String(table), Item: item,
		ConditionExpression:                 aws.String("attribute_not_exists(#id) OR #expires <= :now"),
		ExpressionAttributeNames:            map[string]string{"#id": attrID, "#expires": attrExpires},
		ExpressionAttributeValues:           Item{":now": Int(now.Unix())},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}}
	if len(o.outgoing) == 0 {
		return actions, nil
	}
	data, err := json.Marshal(o.outgoing)
	if err != nil {
		return nil, fmt.Errorf("encode the outgoing messages: %w", err)
	}
	if len(data) <= inlined {
		item[attrOutgoing] = &types.AttributeValueMemberB{Value: data}
		return actions, nil
	}
	// The parts need no condition: only the key's item leads to them, and it commits together with them.
	parts := 0
	for ; len(data) > 0; parts++ {
		size := min(partSize, len(data))
		actions = append(actions, types.TransactWriteItem{Put: &types.Put{TableName: aws.String(table), Item: Item{
			attrID: String(partID(id, parts)), attrOutgoing: &types.AttributeValueMemberB{Value: data[:size]}, attrExpires: expires,
		}}})
		data = data[size:]
	}
	item[attrParts] = Int(int64(parts))
	return actions, nil
}

func partID(id string, n int) string { return id + "#" + strconv.Itoa(n) }

// readOutcome is the reverse of actions, without the parts.
func readOutcome(item Item) (o outcome, err error) {
	if text := item.String(attrResult); text != "" {
		o.result = json.RawMessage(text)
	}
	if data, ok := item[attrOutgoing].(*types.AttributeValueMemberB); ok {
		if err := json.Unmarshal(data.Value, &o.outgoing); err != nil {
			return o, fmt.Errorf("read the stored messages: %w", err)
		}
	}
	if _, there := item[attrParts]; there {
		parts, err := item.Int(attrParts)
		if err != nil {
			return o, err
		}
		o.parts = int(parts)
	}
	return o, nil
}

// expired reports whether a key's item counts as absent. The service removes it later.
func expired(item Item, now time.Time) bool {
	expires, err := item.Int(attrExpires)
	return err == nil && expires <= now.Unix()
}
