package dynamotx

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/internal/awsclock"
	"github.com/oncemill/oncemill/internal/awsconf"
)

// keysTable is the last part of the keys table's name.
const keysTable = "keys"

// DB is the tables of a plugin. It connects, and checks or makes its tables, when the first message needs them, so that a plugin can be
// opened without DynamoDB. It is safe for concurrent use.
type DB struct {
	cfg    Config
	tables []Table

	clock  *awsclock.Clock
	source *source

	lock   chan struct{} // has room for whoever may use what follows
	client *dynamodb.Client
	proven bool // the tables are there
}

// New returns the tables of a plugin, and the keys table and the outbox table beside them. It connects to nothing.
func New(cfg Config, tables ...Table) *DB {
	own := []Table{{Name: keysTable, Partition: attrID, TTL: attrExpires}, {Name: outboxTable, Partition: attrPartition, Sort: attrSort}}
	d := &DB{cfg: cfg, tables: append(own, tables...), clock: awsclock.New(), lock: make(chan struct{}, 1)}
	d.source = newSource(d)
	return d
}

// Name returns a table's name at the service.
func (d *DB) Name(table string) string { return d.cfg.Prefix + table }

func (d *DB) keys() string { return d.Name(keysTable) }

// own reports a table that is not the plans' to write to.
func (d *DB) own(name string) bool { return name == d.keys() || name == d.Name(outboxTable) }

// ready returns the client once the tables are known to be there.
func (d *DB) ready(ctx context.Context) (*dynamodb.Client, error) {
	select {
	case d.lock <- struct{}{}:
		defer func() { <-d.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d.client == nil {
		client, err := connect(ctx, d.cfg, d.clock)
		if err != nil {
			return nil, err
		}
		d.client = client
	}
	if !d.proven {
		if err := d.prove(ctx); err != nil {
			return nil, err
		}
		d.proven = true
	}
	return d.client, nil
}

// distrust has the next call look for the tables again.
func (d *DB) distrust() {
	d.lock <- struct{}{}
	d.proven = false
	<-d.lock
}

// connections is how many requests of one process may be on their way without dialling anew.
const connections = 64

func connect(ctx context.Context, cfg Config, clock *awsclock.Clock) (*dynamodb.Client, error) {
	settings, transport, err := awsconf.Load(ctx, awsconf.Settings{Region: cfg.Region, Connections: connections})
	if err != nil {
		return nil, fmt.Errorf("connect to DynamoDB: %w", err)
	}
	transport.IdleConnTimeout = 30 * time.Second // nobody closes a plugin's connections
	return dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) {
		o.HTTPClient = awsclock.Client{HTTP: &http.Client{Transport: transport}, Clock: clock}
		if cfg.Endpoint != "" {
			o.BaseEndpoint = aws.String(cfg.Endpoint)
		}
	}), nil
}
