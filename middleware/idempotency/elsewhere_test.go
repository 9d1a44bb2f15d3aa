package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// besides runs a test on every database whose hints and leases may be elsewhere.
func besides(t *testing.T, test func(t *testing.T, h *harness)) {
	t.Helper()
	t.Parallel()
	testenv.Redis(t)
	for name, open := range map[string]func(*testing.T) *harness{"sqlite": onSQLite, "postgres": onPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// far is a store of keys elsewhere that belongs to one test.
type far struct {
	*redisstore.Store
	t      *testing.T
	client *redis.Client // past the store
	prefix string
}

func openFar(t *testing.T, url string) *far {
	t.Helper()
	prefix := testenv.Name(t, "far") + ":"
	s, err := redisstore.Open(t.Context(), redisstore.Config{URL: url, Prefix: prefix}, store.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	f := &far{Store: s, t: t, client: redis.NewClient(opts), prefix: prefix}
	t.Cleanup(func() { _ = f.client.Close(); _ = s.Close() })
	return f
}

// with gives an engine this store elsewhere.
func with(e keystore.Elsewhere) func(*idempotency.Config) {
	return func(c *idempotency.Config) { c.Elsewhere = e }
}

// lose removes every key of the test, as FLUSHALL would on a server of its own.
func (f *far) lose() {
	f.t.Helper()
	ctx := context.Background()
	keys, err := f.client.Keys(ctx, f.prefix+"*").Result()
	require.NoError(f.t, err)
	if len(keys) > 0 {
		require.NoError(f.t, f.client.Del(ctx, keys...).Err())
	}
}

func (f *far) key(key string) keystore.Record {
	f.t.Helper()
	records, err := f.Peek(f.t.Context(), []keystore.ID{{Scope: scope, Key: key}})
	require.NoError(f.t, err)
	return records[0]
}

// hinted is how many duplicates cost no transaction.
func (e *engine) hinted() int { return e.events("duplicate:hint") }

// counting counts the transactions that an engine begins.
type counting struct {
	keystore.Store
	begun atomic.Int64
}

func (c *counting) Begin(ctx context.Context, opts keystore.TxOptions) (keystore.Tx, error) {
	c.begun.Add(1)
	return c.Store.Begin(ctx, opts)
}

func TestHintSavesTheTransaction(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f, counted := openFar(t, testenv.Redis(t)), &counting{Store: h.Keys()}
		var results atomic.Int64
		e := h.newEngine(t, idempotency.Binding{Handler: failing(func(*message.Message) error { return nil })}, with(f), func(c *idempotency.Config) {
			c.Keys = counted
			c.OnDuplicate = func(context.Context, *message.Message, keystore.Record) { results.Add(1) }
		})
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, keystore.Completed, f.key("key").State)
		before := counted.begun.Load()
		e.acked(t, newMessage("key", "1"), newMessage("key", "1"))
		require.Equal(t, before, counted.begun.Load())
		require.Equal(t, 2, e.hinted())
		require.EqualValues(t, 2, results.Load())

		e.acked(t, newMessage("key", "another payload"))
		require.Equal(t, "payload-mismatch", h.dead(t).Reason, "a mismatch goes the normal way")

		f.lose()
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 2, e.hinted(), "a hint that is lost costs a transaction")
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 3, e.hinted(), "which brings it back")
		require.Equal(t, 1, h.effects(t))
	})
}

// A database that forgot a commit must not be overruled by the store that remembers it.
func TestHintNeverHidesWhatTheDatabaseForgot(t *testing.T) {
	forget := map[string]func(t *testing.T, h *harness){
		"a person forgets the key": func(t *testing.T, h *harness) {
			require.NoError(t, h.Keys().Forget(t.Context(), keystore.ID{Scope: scope, Key: "key"}, "test", "again"))
		},
		"failover to a server without the commit": func(t *testing.T, h *harness) {
			h.exec(t, `DELETE FROM processed_events`)
			h.exec(t, `UPDATE key_epoch SET server = 'the server of before'`)
		},
		"a restored backup and the person's word": func(t *testing.T, h *harness) {
			h.exec(t, `DELETE FROM processed_events`)
			_, err := h.Keys().RaiseEpoch(t.Context(), "test", "restored")
			require.NoError(t, err)
		},
	}
	besides(t, func(t *testing.T, h *harness) {
		for name, forgets := range forget {
			t.Run(name, func(t *testing.T) {
				h.exec(t, `DELETE FROM effects`)
				f := openFar(t, testenv.Redis(t))
				e := h.newEngine(t, idempotency.Binding{Handler: effect}, with(f))
				e.acked(t, newMessage("key", "1"))
				e.acked(t, newMessage("key", "1"))
				require.Equal(t, 1, e.hinted())
				forgets(t, h)
				require.Equal(t, keystore.Completed, f.key("key").State, "it still says so")
				time.Sleep(keystore.EpochTrust)
				e.acked(t, newMessage("key", "1"))
				require.Equal(t, 2, h.effects(t), "the message runs again")
				h.exec(t, `DELETE FROM processed_events`)
			})
		}
	})
}

func (h *harness) exec(t *testing.T, query string) {
	t.Helper()
	_, err := h.DB().ExecContext(t.Context(), query)
	require.NoError(t, err)
}

// A note that comes late, after its key was forgotten, is of an epoch that is over.
func TestLateNoteIsOfAnEpochThatIsOver(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		f := openFar(t, testenv.Redis(t))
		slow := &lateNotes{Elsewhere: f, held: make(chan keystore.Completion, 1)}
		slow.holding.Store(true)
		e := h.newEngine(t, idempotency.Binding{Handler: effect}, with(slow))
		e.acked(t, newMessage("key", "1"))
		slow.holding.Store(false)
		require.NoError(t, h.Keys().Forget(t.Context(), keystore.ID{Scope: scope, Key: "key"}, "test", "again"))
		time.Sleep(keystore.EpochTrust)
		require.NoError(t, f.Note(t.Context(), []keystore.Completion{<-slow.held}))
		require.Equal(t, keystore.Completed, f.key("key").State)
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 2, h.effects(t))
		require.Zero(t, e.hinted())
	})
}

// lateNotes keeps notes back.
type lateNotes struct {
	keystore.Elsewhere
	holding atomic.Bool
	held    chan keystore.Completion
}

func (l *lateNotes) Note(ctx context.Context, done []keystore.Completion) error {
	if l.holding.Load() {
		l.held <- done[0]
		return nil
	}
	return l.Elsewhere.Note(ctx, done)
}

// F048, two-tier: whatever the store of hints loses in mid-load, and when it is gone, no effect is doubled or lost.
func TestF048LossOfHintsDoublesNothing(t *testing.T) {
	for name, disaster := range map[string]func(t *testing.T, s *testenv.Server, c *redis.Client){
		"FLUSHALL": func(t *testing.T, _ *testenv.Server, c *redis.Client) {
			require.NoError(t, c.FlushAll(context.Background()).Err())
		},
		"restart without persistence": func(_ *testing.T, s *testenv.Server, _ *redis.Client) { s.Crash(); s.Start() },
		"eviction storm": func(t *testing.T, _ *testenv.Server, c *redis.Client) {
			ctx := context.Background()
			require.NoError(t, c.ConfigSet(ctx, "maxmemory-policy", "allkeys-random").Err())
			require.NoError(t, c.ConfigSet(ctx, "maxmemory", "4mb").Err())
			for i := range 200 {
				require.NoError(t, c.Set(ctx, fmt.Sprint("cache-", i), make([]byte, 64<<10), 0).Err())
			}
			evicted, err := c.Info(ctx, "stats").Result()
			require.NoError(t, err)
			require.NotContains(t, evicted, "evicted_keys:0\r")
		},
	} {
		t.Run(name, func(t *testing.T) {
			besides(t, func(t *testing.T, h *harness) {
				server := testenv.PrivateRedis(t, "--appendonly no")
				f := openFar(t, server.Address)
				a := h.newEngine(t, idempotency.Binding{Handler: effect}, with(f))
				b := h.newEngine(t, idempotency.Binding{Handler: effect}, with(openFarAs(t, f, server.Address)), on(h.open(t, 0)))
				const keys, copies = 150, 4
				half := make(chan struct{})
				ended := make(chan []error, 2)
				for i, e := range []*engine{a, b} {
					go func() {
						var errs []error
						for n := range keys * copies / 2 {
							if i == 0 && n == keys*copies/4 {
								close(half)
							}
							errs = append(errs, e.Process(newMessage(fmt.Sprint("key-", n%keys), "1")))
						}
						ended <- errs
					}()
				}
				<-half
				disaster(t, server, f.client)
				for range 2 {
					require.NoError(t, errors.Join(<-ended...))
				}
				require.Equal(t, keys, h.effects(t))
				require.Equal(t, keys, h.count(t, `SELECT count(DISTINCT k) FROM effects`))
				require.Empty(t, h.rows(t))
				require.Positive(t, a.hinted()+b.hinted())
			})
		})
	}
}

// openFarAs opens the keys of f again, as another process.
func openFarAs(t *testing.T, f *far, url string) keystore.Elsewhere {
	t.Helper()
	s, err := redisstore.Open(t.Context(), redisstore.Config{URL: url, Prefix: f.prefix}, store.Options{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// F030: without the store of keys transactional handlers go on, and external ones wait without a call.
func TestF030StoreElsewhereIsDown(t *testing.T) {
	besides(t, func(t *testing.T, h *harness) {
		server := testenv.PrivateRedis(t, "")
		f := openFar(t, server.Address)
		server.Stop()
		plain := h.newEngine(t, idempotency.Binding{Handler: effect}, with(f))
		plain.acked(t, newMessage("plain", "1"), newMessage("plain", "1"))
		require.Equal(t, 1, h.effectsOf(t, "plain"))
		require.Zero(t, plain.hinted())

		var outside provider
		e := h.newEngine(t, idempotency.Binding{Scope: "svc/ext", External: external(outside.call)}, with(f))
		wait := e.deliver(newMessage("outside", "1"))
		eventually(t, "the outage is noticed", func() bool { return e.events(idempotency.EventUnavailable) >= 2 })
		require.Zero(t, h.effectsOf(t, "outside"))
		require.Empty(t, h.rows(t), "an outage poisons nothing")
		server.Start()
		require.NoError(t, wait()[0])
		require.Equal(t, 1, h.effectsOf(t, "outside"))
		require.Empty(t, h.rows(t, parking.Dead))
		require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`), "an outage is no attempt")
	})
}
