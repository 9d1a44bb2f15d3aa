package dynamotx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// Table is what a plugin needs of a table. Its keys are of type S.
type Table struct {
	Name string
	// Partition and Sort name the attributes of the key; Sort may be empty.
	Partition, Sort string
	// TTL names the attribute by which the service removes items late; empty for none.
	TTL string
}

// String says how the table has to look.
func (t Table) String() string {
	text := "partition key " + t.Partition + " (S)"
	if t.Sort != "" {
		text += ", sort key " + t.Sort + " (S)"
	}
	if t.TTL != "" {
		text += ", time to live on " + t.TTL
	}
	return text
}

// settleWithin is how long a new table may take until it can be used.
const settleWithin = time.Minute

// prove checks all tables, or makes those that are missing. Its error names every one that is not right.
func (d *DB) prove(ctx context.Context) error {
	var errs []error
	for _, table := range d.tables {
		if err := d.proveOne(ctx, table); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", d.Name(table.Name), err))
		}
	}
	return errors.Join(errs...)
}

func (d *DB) proveOne(ctx context.Context, table Table) error {
	name := aws.String(d.Name(table.Name))
	out, err := d.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: name})
	var missing *types.ResourceNotFoundException
	switch {
	case errors.As(err, &missing) && d.cfg.Create:
		return d.create(ctx, name, table)
	case errors.As(err, &missing):
		return fmt.Errorf("is not there: set create, or make it with %s", table)
	case err != nil:
		return fmt.Errorf("cannot be looked at: %w", err)
	}
	if !table.fits(out.Table) {
		return fmt.Errorf("has another key: it has to have %s; set another prefix", table)
	}
	if out.Table.TableStatus == types.TableStatusCreating {
		if err := d.settled(ctx, name); err != nil {
			return err
		}
	}
	return d.forgets(ctx, name, table)
}

// forgets checks that the service removes what has expired, or sees to it. One that removed by another attribute would remove what still counts.
func (d *DB) forgets(ctx context.Context, name *string, table Table) error {
	if table.TTL == "" {
		return nil
	}
	out, err := d.client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: name})
	if err != nil {
		return fmt.Errorf("time to live cannot be looked at: %w", err)
	}
	found := out.TimeToLiveDescription
	on := found.TimeToLiveStatus == types.TimeToLiveStatusEnabled || found.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	switch {
	case on && text(found.AttributeName) != table.TTL:
		return fmt.Errorf("time to live is on the attribute %q: it has to be on %q", text(found.AttributeName), table.TTL)
	case on:
		return nil
	case !d.cfg.Create:
		return fmt.Errorf("time to live is off: set it to the attribute %q", table.TTL)
	}
	_, err = d.client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: name, TimeToLiveSpecification: &types.TimeToLiveSpecification{
		AttributeName: aws.String(table.TTL), Enabled: aws.Bool(true),
	}})
	if err != nil && !strings.Contains(err.Error(), "already enabled") { // by another replica
		return fmt.Errorf("time to live cannot be set: %w", err)
	}
	return nil
}

func (t Table) fits(found *types.TableDescription) bool {
	want := []string{t.Partition + " HASH"}
	if t.Sort != "" {
		want = append(want, t.Sort+" RANGE")
	}
	var got []string
	for _, k := range found.KeySchema {
		got = append(got, text(k.AttributeName)+" "+string(k.KeyType))
		for _, a := range found.AttributeDefinitions {
			if text(a.AttributeName) == text(k.AttributeName) && a.AttributeType != types.ScalarAttributeTypeS {
				return false
			}
		}
	}
	return slices.Equal(got, want)
}

// create makes a table. Another replica may do the same at the same time.
func (d *DB) create(ctx context.Context, name *string, table Table) error {
	input := &dynamodb.CreateTableInput{TableName: name, BillingMode: types.BillingModePayPerRequest}
	add := func(attribute string, kind types.KeyType) {
		input.KeySchema = append(input.KeySchema, types.KeySchemaElement{AttributeName: aws.String(attribute), KeyType: kind})
		input.AttributeDefinitions = append(input.AttributeDefinitions,
			types.AttributeDefinition{AttributeName: aws.String(attribute), AttributeType: types.ScalarAttributeTypeS})
	}
	add(table.Partition, types.KeyTypeHash)
	if table.Sort != "" {
		add(table.Sort, types.KeyTypeRange)
	}
	var there *types.ResourceInUseException
	if _, err := d.client.CreateTable(ctx, input); err != nil && !errors.As(err, &there) {
		return fmt.Errorf("cannot be made: %w", err)
	}
	if err := d.settled(ctx, name); err != nil {
		return err
	}
	return d.forgets(ctx, name, table)
}

func (d *DB) settled(ctx context.Context, name *string) error {
	err := dynamodb.NewTableExistsWaiter(d.client, func(o *dynamodb.TableExistsWaiterOptions) { o.MinDelay = 200 * time.Millisecond }).
		Wait(ctx, &dynamodb.DescribeTableInput{TableName: name}, settleWithin)
	if err != nil {
		return fmt.Errorf("does not become active: %w", err)
	}
	return nil
}
