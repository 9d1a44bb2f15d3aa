package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/internal/awsconf"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// TableError says what is wrong with the table, and what to do. Nothing is written into such a table.
type TableError struct {
	Table, Wrong string
}

func (e *TableError) Error() string { return fmt.Sprintf("table %s: %s", e.Table, e.Wrong) }

const (
	// settleWithin bounds the wait for a table that was made, or is being changed by somebody else.
	settleWithin = time.Minute
	// startedWithin is how long a time to live that was turned on may still look as if it were off.
	startedWithin = 5 * time.Second
	lookEvery     = 200 * time.Millisecond
)

// prepare makes sure, once, that the table is as it must be.
func (s *Store) prepare(ctx context.Context) error {
	if s.checked.Load() {
		return nil
	}
	select {
	case s.checking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.checking }()
	if s.checked.Load() {
		return nil
	}
	if err := s.check(ctx); err != nil {
		return err
	}
	s.checked.Store(true)
	return nil
}

func (s *Store) wrong(format string, args ...any) error {
	return &TableError{Table: s.cfg.Table, Wrong: fmt.Sprintf(format, args...)}
}

// check looks at the table, and makes it first where it is missing and Config.Create is set.
func (s *Store) check(ctx context.Context) error {
	table, err := s.describe(ctx)
	if err != nil {
		return err
	}
	if table == nil {
		if !s.cfg.Create {
			return s.wrong("does not exist in region %s: set databases.%s.create to true, or make it with the binary partition key %q and the time to live on %q",
				s.region, Name, keyAttribute, ttlAttribute)
		}
		if table, err = s.create(ctx); err != nil {
			return err
		}
	}
	if err := s.checkKey(table); err != nil {
		return err
	}
	if err := s.checkTTL(ctx); err != nil {
		return err
	}
	s.learn(table)
	return nil
}

// describe returns the table, once it is not being made any more; nil where it does not exist.
func (s *Store) describe(ctx context.Context) (*types.TableDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for {
		out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.cfg.Table})
		if missing := (*types.ResourceNotFoundException)(nil); errors.As(err, &missing) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look at table %s: %w", s.cfg.Table, err)
		}
		if out.Table.TableStatus != types.TableStatusCreating {
			return out.Table, nil
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("wait for table %s: %w", s.cfg.Table, err)
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(lookEvery):
		return nil
	}
}

// create makes the table. Replicas that do so at the same time get the same one.
func (s *Store) create(ctx context.Context) (*types.TableDescription, error) {
	_, err := s.client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &s.cfg.Table, BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: new(keyAttribute), AttributeType: types.ScalarAttributeTypeB}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: new(keyAttribute), KeyType: types.KeyTypeHash}},
	})
	if exists := (*types.ResourceInUseException)(nil); err != nil && !errors.As(err, &exists) {
		return nil, fmt.Errorf("create table %s: %w", s.cfg.Table, err)
	}
	table, err := s.describe(ctx)
	if err == nil && table == nil {
		err = s.wrong("is not there after it was made")
	}
	if err != nil {
		return nil, err
	}
	return table, nil
}

func (s *Store) checkKey(table *types.TableDescription) error {
	if len(table.KeySchema) == 1 && *table.KeySchema[0].AttributeName == keyAttribute {
		for _, a := range table.AttributeDefinitions {
			if *a.AttributeName == keyAttribute && a.AttributeType == types.ScalarAttributeTypeB {
				return nil
			}
		}
	}
	return s.wrong("it must have the binary partition key %q and no sort key: name another table by databases.%s.table", keyAttribute, Name)
}

// checkTTL refuses a table that would keep expired keys for ever, or would lose keys in progress. Where tables are made it turns the time to live on if it is
// off: this process has just made the table, or another one, which may have ended before it did so.
func (s *Store) checkTTL(ctx context.Context) error {
	ttl, err := s.timeToLive(ctx)
	if err == nil && ttl == "" && s.cfg.Create {
		ttl, err = s.startTTL(ctx)
	}
	switch {
	case err != nil:
		return err
	case ttl == "":
		return s.wrong("its time to live is off, so completed keys would stay for ever: set it on the attribute %q", ttlAttribute)
	case ttl != ttlAttribute:
		return s.wrong("its time to live is on the attribute %q and must be on %q: set it there", ttl, ttlAttribute)
	}
	return nil
}

// startTTL turns the time to live on. Where that is refused another process was faster, which is seen soon.
func (s *Store) startTTL(ctx context.Context) (string, error) {
	_, err := s.client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               &s.cfg.Table,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: new(ttlAttribute), Enabled: new(true)},
	})
	if err != nil && awsconf.Code(err) != "ValidationException" {
		return "", fmt.Errorf("set the time to live of table %s: %w", s.cfg.Table, err)
	}
	for began := time.Now(); ; {
		ttl, err := s.timeToLive(ctx)
		if err != nil || ttl != "" || time.Since(began) > startedWithin {
			return ttl, err
		}
		if err := pause(ctx); err != nil {
			return "", fmt.Errorf("wait for the time to live of table %s: %w", s.cfg.Table, err)
		}
	}
}

// timeToLive returns the attribute that the time to live is on; "" where it is off.
func (s *Store) timeToLive(ctx context.Context) (string, error) {
	out, err := s.client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &s.cfg.Table})
	if err != nil {
		return "", fmt.Errorf("look at the time to live of table %s: %w", s.cfg.Table, err)
	}
	ttl := out.TimeToLiveDescription
	if ttl == nil || ttl.AttributeName == nil || ttl.TimeToLiveStatus != types.TimeToLiveStatusEnabled && ttl.TimeToLiveStatus != types.TimeToLiveStatusEnabling {
		return "", nil
	}
	return *ttl.AttributeName, nil
}

// learn takes from the table what it promises.
func (s *Store) learn(table *types.TableDescription) {
	caps := keystore.Capabilities{Durable: true, Caveats: []string{
		"a lease that DynamoDB loses (a table that is deleted or restored from a backup) while a call is under way, or after its process died: the call can be made twice, " +
			"under the same downstream key and whatever unknown_outcome says; its rows still commit once",
	}}
	if s.replicated(table) {
		const loss = "DynamoDB's replicas in several regions overwrite each other's leases (a global table: the last writer wins)"
		if s.cfg.AllowLoss {
			caps.Caveats = append(caps.Caveats, loss+" (allow_loss is set): a call under way can be made twice, whatever unknown_outcome says")
		} else {
			caps.Forgets = loss + ": use a table of one region, or one with strong consistency over regions"
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caps = caps
}

// replicated reports whether another region's replica takes writes without asking this one.
func (s *Store) replicated(table *types.TableDescription) bool {
	if table.MultiRegionConsistency == types.MultiRegionConsistencyStrong {
		return false
	}
	for _, replica := range table.Replicas {
		if replica.RegionName != nil && *replica.RegionName != s.region {
			return true
		}
	}
	return table.GlobalTableVersion != nil && *table.GlobalTableVersion == "2017.11.29"
}
