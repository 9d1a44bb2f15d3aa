package dynamostore

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// Peek implements keystore.Elsewhere. Each key is a read of its own.
func (s *Store) Peek(ctx context.Context, ids []keystore.ID) ([]keystore.Record, error) {
	records := make([]keystore.Record, len(ids))
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("read a key: %w", err)
	}
	for i, id := range ids {
		v, err := s.read(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("read a key: %w", err)
		}
		records[i] = v.record(id)
	}
	return records, nil
}

// read returns a key as it stands, after everything that was answered before.
func (s *Store) read(ctx context.Context, id keystore.ID) (view, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{TableName: &s.cfg.Table, Key: values{keyAttribute: name(id)}, ConsistentRead: new(true)})
	if err != nil {
		return view{}, err
	}
	v, known := s.seen(out.Item)
	if !known {
		return view{}, awsclock.ErrNoDate
	}
	return v, nil
}

// seen is an item that an answer had, which has come just now. Its time is not known where no answer has ever had a Date.
func (s *Store) seen(i values) (v view, known bool) {
	now, known := s.clock.At(time.Now())
	return view{i, now.Earliest}, known
}
