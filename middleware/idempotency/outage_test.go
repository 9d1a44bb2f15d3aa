package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// The database goes away, in the middle of handlers and before them: no handler is called without a claim, nothing is acked,
// nothing is a dead letter, and when it is back everything goes on by itself.
func TestF030DatabaseGone(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	h := newHarness(t, postgresOpener(db, db.DSN))
	u, err := url.Parse(db.DSN)
	require.NoError(t, err)
	proxy := testenv.Proxy(t, u.Host)
	u.Host = proxy.Addr
	through := postgresOpener(db, u.String())(t, 0)
	t.Cleanup(func() { _ = through.Close() })

	hold := newBreakpoint(t, "handler")
	var calls atomic.Int64
	e := h.newEngine(t, idempotency.Binding{
		Concurrency: 1, Retry: idempotency.Retry{Attempts: 2},
		Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			calls.Add(1)
			hold.hit()
			return effect(ctx, tx, msg)
		}}, on(through))
	var msgs []*message.Message
	for i := range 20 {
		msgs = append(msgs, newMessage(fmt.Sprintf("key-%d", i%15), "1"))
	}
	wait := e.deliver(msgs...)
	hold.await(t) // the first is inside its transaction
	proxy.Cut()
	hold.release()
	eventually(t, "the outage is noticed", func() bool { return e.events(idempotency.EventUnavailable) >= 20 })
	require.LessOrEqual(t, calls.Load(), int64(2), "handlers are called without a claim")
	require.Zero(t, h.effects(t))
	proxy.Restore()
	for _, err := range wait() {
		require.NoError(t, err)
	}
	require.Equal(t, 15, h.effects(t))
	require.Equal(t, 15, h.count(t, `SELECT count(DISTINCT k) FROM effects`))
	require.Empty(t, h.rows(t))
	require.Zero(t, h.count(t, `SELECT count(*) FROM attempts`), "an outage is no attempt")
}

// storm is a store with steps that fail while the storm blows.
type storm struct {
	keystore.Store
	parked parking.Store
	broken atomic.Pointer[string] // the step that fails
	hits   atomic.Int64
}

var errStorm = errors.New("no connection to the database")

func newStorm(h *harness, step string) *storm {
	s := &storm{Store: h.Keys(), parked: h.Parking()}
	s.broken.Store(&step)
	return s
}

func (s *storm) option(c *idempotency.Config) { c.Keys, c.Parking = s, stormyParking{s.parked, s} }

func (s *storm) calm() { none := ""; s.broken.Store(&none) }

func (s *storm) fail(step string) error {
	if *s.broken.Load() != step {
		return nil
	}
	s.hits.Add(1)
	return fmt.Errorf("%s: %w", step, errStorm)
}

func (s *storm) Classify(err error) keystore.Fault {
	if errors.Is(err, errStorm) {
		return keystore.FaultUnavailable
	}
	return s.Store.Classify(err)
}

func (s *storm) Begin(ctx context.Context, opts keystore.TxOptions) (keystore.Tx, error) {
	if err := s.fail("begin"); err != nil {
		return nil, err
	}
	tx, err := s.Store.Begin(ctx, opts)
	return stormyTx{tx, s}, err
}

func (s *storm) Count(ctx context.Context, id keystore.ID, f keystore.Failure) (int, error) {
	if err := s.fail("count"); err != nil {
		return 0, err
	}
	return s.Store.Count(ctx, id, f)
}

func (s *storm) Suspect(ctx context.Context, id keystore.ID) (int, error) {
	if err := s.fail("suspect"); err != nil {
		return 0, err
	}
	return s.Store.Suspect(ctx, id)
}

func (s *storm) Peek(ctx context.Context, ids []keystore.ID) ([]keystore.Record, error) {
	if err := s.fail("peek"); err != nil {
		return nil, err
	}
	return s.Store.Peek(ctx, ids)
}

func (s *storm) Acquire(ctx context.Context, owner string, claims []keystore.Claim, lease time.Duration) ([]keystore.Verdict, error) {
	if err := s.fail("acquire"); err != nil {
		return nil, err
	}
	return s.Store.Acquire(ctx, owner, claims, lease)
}

func (s *storm) Release(ctx context.Context, id keystore.ID, token string) error {
	if err := s.fail("release"); err != nil {
		return err
	}
	return s.Store.Release(ctx, id, token)
}

type stormyTx struct {
	keystore.Tx
	storm *storm
}

func (t stormyTx) Claim(ctx context.Context, claims []keystore.Claim) ([]keystore.Verdict, error) {
	if err := t.storm.fail("claim"); err != nil {
		return nil, err
	}
	return t.Tx.Claim(ctx, claims)
}

func (t stormyTx) Commit(ctx context.Context, completions []keystore.Completion) error {
	if err := t.storm.fail("commit"); err != nil {
		return err
	}
	if err := t.storm.fail("bury"); err != nil && completions[0].Park != nil {
		return err
	}
	return t.Tx.Commit(ctx, completions)
}

type stormyParking struct {
	parking.Store
	storm *storm
}

func (p stormyParking) Park(ctx context.Context, rows []parking.Row) error {
	if err := p.storm.fail("park"); err != nil {
		return err
	}
	return p.Store.Park(ctx, rows)
}

// Each step of the store in turn does not answer. The message waits for it, and then goes its way as if nothing had been.
func TestF030EachStepFails(t *testing.T) {
	for _, step := range []string{"begin", "claim", "commit", "count", "park", "bury", "suspect", "peek", "acquire", "release"} {
		t.Run(step, func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				storm := newStorm(h, step)
				var calls atomic.Int64
				b := idempotency.Binding{Retry: idempotency.Retry{InProcess: -1}}
				fails := func(msg *message.Message) error {
					calls.Add(1)
					switch string(msg.Payload) {
					case "transient":
						return errBroken
					case "permanent":
						return refusal{"no"}
					}
					return nil
				}
				msg := newMessage("key", "good")
				switch step {
				case "count", "park":
					msg.Payload = []byte("transient")
				case "bury":
					msg.Payload = []byte("permanent")
				case "suspect", "peek":
					msg = redelivered(msg)
				}
				if step == "acquire" || step == "release" {
					msg.Payload = []byte("transient")
					b.External = external(func(_ context.Context, msg *message.Message, _, _ string) (any, error) { return nil, fails(msg) })
					b.Lease = 300 * time.Millisecond // where it cannot be released it must end
				} else {
					b.Handler = failing(fails)
				}
				e := h.newEngine(t, b, storm.option)
				wait := e.deliver(msg)
				eventually(t, "the step fails", func() bool { return storm.hits.Load() >= 1 })
				if step == "begin" || step == "claim" || step == "suspect" || step == "peek" || step == "acquire" {
					require.Zero(t, calls.Load(), "a handler is called without a claim")
				}
				require.Empty(t, h.rows(t))
				storm.calm()
				require.NoError(t, wait()[0])
				switch string(msg.Payload) {
				case "good":
					require.Equal(t, 1, h.effects(t))
					require.Empty(t, h.rows(t))
				case "transient":
					rows := h.rows(t)
					require.Len(t, rows, 1)
					if step != "release" { // there the lease may have ended meanwhile: its outcome is not known then
						require.Equal(t, parking.Waiting, rows[0].State)
					}
				case "permanent":
					require.Equal(t, "no", h.dead(t).Reason)
				}
			})
		})
	}
}

// A store that stays away hands the message back on a stop.
func TestF030StopDuringAnOutage(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		storm := newStorm(h, "begin")
		e := h.newEngine(t, idempotency.Binding{Handler: effect}, storm.option)
		wait := e.deliver(newMessage("key", "1"), redelivered(newMessage("other", "1")))
		eventually(t, "the store is asked", func() bool { return storm.hits.Load() >= 2 })
		e.Stop()
		require.NoError(t, e.Wait(t.Context()))
		for _, err := range wait() {
			require.Error(t, err)
		}
		require.Zero(t, h.effects(t))
	})
}
