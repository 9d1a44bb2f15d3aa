package dynamotx_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/dynamotest"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
	"github.com/oncemill/oncemill/middleware/outbox/outboxtest"
)

// pending is a transaction that has its records' ids and was not sent.
type pending struct {
	ctx    context.Context //nolint:containedctx // that of the test, for Commit
	commit func(context.Context) error
}

func (p pending) Commit() error   { return p.commit(p.ctx) }
func (p pending) Rollback() error { return nil }

// perCommit is how many records of the suite go into one transaction.
const perCommit = 90

func TestOutbox(t *testing.T) {
	t.Parallel()
	outboxtest.Run(t, func(t *testing.T) outboxtest.Harness {
		cfg := dynamotx.Defaults(testenv.Name(t, "o") + "-")
		server := dynamotest.Start(t)
		cfg.Endpoint, cfg.Region, cfg.Create = server.Endpoint, dynamotest.Region, true
		db := dynamotx.New(cfg)
		_, err := db.Outbox().Status(t.Context()) // makes the tables
		require.NoError(t, err)
		return outboxtest.Harness{
			Source: db.Outbox(),
			Poll:   250 * time.Millisecond, // the emulator has one thread
			Commit: func(ctx context.Context, records []outbox.Record) error {
				for some := range slices.Chunk(records, perCommit) {
					commit, err := db.Begin(ctx, some)
					if err == nil {
						err = commit(ctx)
					}
					if err != nil {
						return err
					}
				}
				return nil
			},
			Begin: func(ctx context.Context, records []outbox.Record) (outboxtest.Tx, error) {
				commit, err := db.Begin(ctx, records)
				return pending{ctx, commit}, err
			},
			// What is over for sure is so some time later: the service's clock is known to a second, and its servers' may differ by one.
			Advance: func(d time.Duration) { server.Advance(d + 3*time.Second) },
			Reopen:  func(*testing.T) outbox.Source { return dynamotx.New(cfg).Outbox() },
		}
	})
}
