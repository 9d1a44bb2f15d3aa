//go:build !race

package handlertest_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/handlertest"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// The proof tells engines that are wrong from the same engine without the mistake.
func TestMistakesOfEnginesAreCaught(t *testing.T) {
	for _, wrong := range []mistake{none, claimBefore, markBefore, lookUp, ackBefore, setIfAbsent, retryInTx, bucketedKey, outboxForgets} {
		t.Run(string(wrong), func(t *testing.T) {
			caught(t, naive{wrong: wrong}, shop(take), handlertest.Kinds(), func(k *handlertest.Kit) {
				k.WantRow(`SELECT count(*) FROM seen`, 1)
				k.WantRow(`SELECT n FROM totals`, 1)
				k.WantPublished("orders.taken", 1)
			})
		})
	}
}

// The same of an engine that calls a provider under a lease.
func TestMistakesWithLeasesAreCaught(t *testing.T) {
	for _, wrong := range []mistake{none, noFencing, workersClock} {
		t.Run(string(wrong), func(t *testing.T) {
			dir, kinds := t.TempDir(), handlertest.Kinds()
			if wrong != noFencing { // a replica that stands still while another takes over has two calls at once, and nothing can help it
				kinds = kinds[:len(kinds)-1]
			}
			p := plugin(func(b *handlers.Bindings) {
				b.OnExternal("orders.placed", handlers.External{Unknown: handlers.UnknownRetry, Call: send, Record: recordSent})
			})
			caught(t, naive{wrong: wrong, provider: dir}, p, kinds, func(k *handlertest.Kit) {
				k.WantRow(`SELECT count(*) FROM totals`, 1)
				if said, err := os.ReadFile(filepath.Join(dir, overlaps)); err == nil {
					k.T().Errorf("the provider: %s", said)
				}
			})
		})
	}
}

// caught checks that a mistake is found and that its absence is not.
func caught(t *testing.T, n naive, p handlers.Plugin, kinds []handlertest.Kind, invariant func(k *handlertest.Kit)) {
	t.Helper()
	if n.wrong == setIfAbsent {
		options, err := redis.ParseURL(testenv.Redis(t))
		require.NoError(t, err)
		n.redis = redis.NewClient(options)
		defer n.redis.Close()
	}
	k := handlertest.New(t, p, nil, handlertest.WithOutbox(func(s store.Store) outbox.Source { return n.outbox(s) }),
		handlertest.WithEngine(func(parts handlertest.Parts) handlertest.Engine {
			made := n
			made.Parts = parts
			return &made
		}))
	k.Exec(`CREATE TABLE naive_keys (key TEXT PRIMARY KEY, state TEXT, owner TEXT, until INTEGER)`)
	k.Exec(`CREATE TABLE read_until (lane INTEGER PRIMARY KEY, id INTEGER)`)
	said, tried := k.Shortest(kinds, invariant, placed)
	if n.wrong == none {
		require.Empty(t, said)
		return
	}
	require.NotEmpty(t, said, "%d schedules found nothing", tried)
	t.Logf("caught by schedule %d:\n%s", tried, said)
}

func send(context.Context, *message.Message, handlers.Key) (any, error) { return "sent", nil }

func recordSent(ctx context.Context, tx handlers.Tx, _ *message.Message, _ json.RawMessage) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO totals (name, n) VALUES ('sent' || (SELECT count(*) FROM totals), 1)`)
	return err
}

// outbox is the store's, or one that remembers how far it has read, and not what was published.
func (n *naive) outbox(s store.Store) outbox.Source {
	if n.wrong != outboxForgets {
		return s.Outbox()
	}
	return &forgetfulOutbox{Source: s.Outbox(), store: s}
}

type forgetfulOutbox struct {
	outbox.Source
	store store.Store
}

func (o *forgetfulOutbox) Fetch(ctx context.Context, lane outbox.Lane, limit int) ([]outbox.Record, error) {
	records, err := o.Source.Fetch(ctx, lane, limit)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	var until []int64
	if err := o.store.DB().SelectContext(ctx, &until, `SELECT id FROM read_until WHERE lane = ?`, lane.Number); err != nil {
		return nil, err
	}
	last := records[len(records)-1].ID
	if len(until) > 0 && last <= until[0] {
		return nil, nil
	}
	_, err = o.store.DB().ExecContext(ctx, `INSERT INTO read_until (lane, id) VALUES (?, ?) ON CONFLICT (lane) DO UPDATE SET id = excluded.id`, lane.Number, last)
	return records, err
}

func (o *forgetfulOutbox) Status(ctx context.Context) (outbox.Status, error) {
	var unread int64
	err := o.store.DB().GetContext(ctx, &unread, `SELECT count(*) FROM outbox WHERE id > coalesce((SELECT max(id) FROM read_until), 0)`)
	if status, failed := o.Source.Status(ctx); failed == nil && unread > 0 {
		return status, err
	}
	return outbox.Status{}, err
}
