package dynamotx

import (
	"cmp"
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// Status implements outbox.Source. It scans the table.
func (s *source) Status(ctx context.Context) (outbox.Status, error) {
	a, err := s.open(ctx)
	if err != nil {
		return outbox.Status{}, s.failed("count the records", err)
	}
	var status outbox.Status
	pages := dynamodb.NewScanPaginator(a.client, &dynamodb.ScanInput{
		TableName: &a.table, ConsistentRead: new(true), FilterExpression: new("attribute_exists(#created)"),
		ProjectionExpression:     new("#lane, #created, #deliver_at"),
		ExpressionAttributeNames: map[string]string{"#lane": attrPartition, "#created": attrCreated, "#deliver_at": attrDeliverAt},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return outbox.Status{}, s.failed("count the records", err)
		}
		for _, item := range page.Items {
			a.tally(&status, item)
		}
	}
	return status, nil
}

func (a access) tally(status *outbox.Status, item Item) {
	created, due := item.time(attrCreated), item.time(attrDeliverAt)
	switch {
	case item.String(attrPartition) == partAside:
		status.Aside++
	case due.After(a.now.Earliest):
		status.Delayed++
	default:
		status.Pending++
		if created.After(due) {
			due = created
		}
		status.OldestAge = max(status.OldestAge, a.now.Earliest.Sub(due))
	}
}

// List implements outbox.Source. Where there are more than limit of a lane, those that were delayed come last.
func (s *source) List(ctx context.Context, asideOnly bool, limit int) ([]outbox.Record, error) {
	a, err := s.open(ctx)
	if err != nil {
		return nil, s.failed("list the records", err)
	}
	records, err := a.list(ctx, asideOnly, cmp.Or(max(limit, 0), defaultLimit))
	if err != nil {
		return nil, s.failed("list the records", err)
	}
	return records, nil
}

// bodyGone is shown of a record that cannot be published and is not set aside.
const bodyGone = "a part of its payload was removed from the table"

func (a access) list(ctx context.Context, asideOnly bool, limit int) ([]outbox.Record, error) {
	items, err := a.items(ctx, partAside, maxBatch, -1)
	if err != nil {
		return nil, err
	}
	for lane := 0; lane < outbox.Lanes && !asideOnly; lane++ {
		more, err := a.items(ctx, partLane(lane), int32(min(limit, maxBatch))+1, limit)
		if err != nil {
			return nil, err
		}
		items = append(items, more...)
	}
	slices.SortFunc(items, func(one, two Item) int {
		return cmp.Or(
			cmp.Compare(one.number(attrCreated), two.number(attrCreated)), cmp.Compare(one.number(attrNth), two.number(attrNth)),
			cmp.Compare(one.String(attrSort), two.String(attrSort)),
		)
	})
	var records []outbox.Record
	for _, item := range items[:min(limit, len(items))] {
		r, err := readRecord(item)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	broken, err := a.readBodies(ctx, records)
	for i, r := range records {
		if broken[r.ID] {
			records[i].Reason = bodyGone
		}
	}
	return records, err
}

// items returns the records of a partition, the first limit of them where that is not negative.
func (a access) items(ctx context.Context, partition string, first int32, limit int) ([]Item, error) {
	var found []Item
	err := a.query(ctx, partition, "", first, func(item Item) bool {
		if item.String(attrSort) != laneItem {
			found = append(found, item)
		}
		return len(found) != limit
	})
	return found, err
}

// Retry implements outbox.Source.
func (s *source) Retry(ctx context.Context, ids []int64) (int, error) {
	a, err := s.open(ctx)
	if err != nil {
		return 0, s.failed("retry records", err)
	}
	items, err := a.aside(ctx, ids)
	if err != nil {
		return 0, s.failed("retry records", err)
	}
	var units []unit
	for _, item := range items {
		r, err := readRecord(item)
		if err != nil {
			return 0, s.failed("retry records", err)
		}
		delete(item, attrAttempts)
		delete(item, attrReason)
		units = append(units, a.move(item, partLane(laneOf(r.ID))))
	}
	n, err := a.applied(ctx, units)
	if n > 0 {
		s.committed()
	}
	if err != nil {
		return n, s.failed("retry records", err)
	}
	return n, nil
}

// aside returns the items that are set aside: those of ids, or all where there are none.
func (a access) aside(ctx context.Context, ids []int64) ([]Item, error) {
	if len(ids) == 0 {
		return a.items(ctx, partAside, maxBatch, -1)
	}
	var keys []Item
	for _, id := range unique(ids) {
		keys = append(keys, place(partAside, sortID(id)))
	}
	found, err := a.GetAll(ctx, a.table, keys...)
	return slices.DeleteFunc(found, func(item Item) bool { return item == nil }), err
}

// applied changes what units say and returns how many took effect.
func (a access) applied(ctx context.Context, units []unit) (n int, err error) {
	done, err := a.apply(ctx, nil, units)
	for _, ok := range done {
		if ok {
			n++
		}
	}
	return n, err
}

// Drop implements outbox.Source.
func (s *source) Drop(ctx context.Context, ids []int64) (int, error) {
	a, err := s.open(ctx)
	if err != nil {
		return 0, s.failed("drop records", err)
	}
	var units []unit
	for _, id := range unique(ids) {
		units = append(units, a.remove(partAside, id, "attribute_exists(#record)"))
	}
	n, err := a.applied(ctx, units)
	if err != nil {
		return n, s.failed("drop records", err)
	}
	return n, nil
}
