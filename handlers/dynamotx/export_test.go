package dynamotx

import (
	"context"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// Outbox is the relay's side of the outgoing messages.
func (d *DB) Outbox() outbox.Source { return d.source }

// Begin has the actions that a commit writes records with, and does what a commit does with them.
func (d *DB) Begin(ctx context.Context, records []outbox.Record) (commit func(context.Context) error, err error) {
	actions, err := d.source.actions(ctx, records)
	if err != nil {
		return nil, err
	}
	a, err := d.source.open(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		err := a.transact(ctx, actions)
		d.source.committed()
		return err
	}, check(actions)
}
