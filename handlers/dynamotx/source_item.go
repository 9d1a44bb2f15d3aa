package dynamotx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// Attributes of a record, besides its key. Texts that are empty and numbers that are 0 are left out.
const (
	attrTopic     = "topic"        // S
	attrUUID      = "uuid"         // S
	attrKey       = "key"          // S
	attrOrdering  = "ordering_key" // S
	attrScope     = "scope"        // S
	attrParent    = "parent_key"   // S
	attrMetadata  = "metadata"     // S: JSON
	attrPayload   = "payload"      // B: whole, or a part of it
	attrCreated   = "created_at"   // N: microseconds since 1970, as all times
	attrNth       = "nth"          // N: its place among the records of its transaction
	attrDeliverAt = "deliver_at"   // N
	attrRetryAt   = "retry_at"     // N
	attrAttempts  = "attempts"     // N
	attrReason    = "reason"       // S
)

const (
	// inlined is up to how many bytes a payload stands in the record itself. Records that wait for their next attempt are read each time that
	// their lane is, so they are to be small.
	inlined = 8 << 10
	// partSize is how many bytes of a payload an item of its own has. Emulators count bytes as base64, which takes a third more.
	partSize = 256 << 10
	// maxReason is what is kept of a reason.
	maxReason = 1 << 10
)

// partsFor is how many items of its own a payload needs.
func partsFor(payload []byte) int {
	if len(payload) <= inlined {
		return 0
	}
	return (len(payload) + partSize - 1) / partSize
}

// recordItem is the item of a record that has its ID, the nth of its transaction.
func recordItem(r outbox.Record, nth int) (Item, error) {
	item := place(partLane(laneOf(r.ID)), sortID(r.ID))
	for name, text := range map[string]string{
		attrTopic: r.Topic, attrUUID: r.UUID, attrKey: r.Key, attrOrdering: r.OrderingKey, attrScope: r.Scope, attrParent: r.ParentKey,
	} {
		if text != "" {
			item[name] = String(text)
		}
	}
	if len(r.Metadata) > 0 {
		text, err := json.Marshal(r.Metadata)
		if err != nil {
			return nil, fmt.Errorf("encode the metadata of an outgoing message: %w", err)
		}
		item[attrMetadata] = String(string(text))
	}
	if len(r.Payload) > 0 && partsOf(r.ID) == 0 {
		item[attrPayload] = &types.AttributeValueMemberB{Value: r.Payload}
	}
	item[attrCreated], item[attrNth] = Int(r.CreatedAt.UnixMicro()), Int(int64(nth))
	if !r.DeliverAt.IsZero() {
		item[attrDeliverAt] = Int(r.DeliverAt.UnixMicro())
	}
	return item, nil
}

// readRecord is the reverse of recordItem. A payload in items of its own is still missing.
func readRecord(item Item) (outbox.Record, error) {
	id, err := strconv.ParseInt(item.String(attrSort), 10, 64)
	if err != nil {
		return outbox.Record{}, fmt.Errorf("item %s of partition %s is no record", item.String(attrSort), item.String(attrPartition))
	}
	r := outbox.Record{
		ID: id, Topic: item.String(attrTopic), UUID: item.String(attrUUID), Key: item.String(attrKey), OrderingKey: item.String(attrOrdering),
		Scope: item.String(attrScope), ParentKey: item.String(attrParent), Attempts: int(item.number(attrAttempts)), Reason: item.String(attrReason),
		CreatedAt: item.time(attrCreated), DeliverAt: item.time(attrDeliverAt), Aside: item.String(attrPartition) == partAside,
	}
	if payload, ok := item[attrPayload].(*types.AttributeValueMemberB); ok {
		r.Payload = payload.Value
	}
	if text := item.String(attrMetadata); text != "" {
		if err := json.Unmarshal([]byte(text), &r.Metadata); err != nil {
			return r, fmt.Errorf("read the metadata of record %d: %w", id, err)
		}
	}
	return r, nil
}

// number is a number of the item, 0 where there is none.
func (i Item) number(name string) int64 {
	n, err := i.Int(name)
	if err != nil {
		return 0
	}
	return n
}

// time is a moment of the item, the zero time where there is none.
func (i Item) time(name string) time.Time {
	if i[name] == nil {
		return time.Time{}
	}
	return time.UnixMicro(i.number(name))
}

// readBodies completes records whose payload stands in items of its own. It returns the ids of those that it could not complete: somebody removed a
// part, or the record is gone by now.
func (a access) readBodies(ctx context.Context, records []outbox.Record) (broken map[int64]bool, err error) {
	var keys []Item
	for _, r := range records {
		for n := range partsOf(r.ID) {
			keys = append(keys, place(partBody(r.ID), sortPart(n)))
		}
	}
	found, err := a.GetAll(ctx, a.table, keys...)
	if err != nil {
		return nil, err
	}
	broken = map[int64]bool{}
	for i, r := range records {
		n := partsOf(r.ID)
		if n == 0 {
			continue
		}
		payload, complete := join(found[:n])
		found = found[n:]
		records[i].Payload, broken[r.ID] = payload, !complete
	}
	return broken, nil
}

func join(parts []Item) (payload []byte, complete bool) {
	var all [][]byte
	for _, item := range parts {
		part, ok := item[attrPayload].(*types.AttributeValueMemberB)
		if !ok {
			return nil, false
		}
		all = append(all, part.Value)
	}
	return bytes.Join(all, nil), true
}

// readable is a reason as it is kept.
func readable(reason string) string {
	return strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}
