package idempotency_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// asked is what a provider answers to a probe.
type asked struct {
	mu     sync.Mutex
	known  bool
	err    error
	probes int
}

func (a *asked) probe(context.Context, *message.Message, string, string) (any, bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probes++
	return "found", a.known, a.err
}

func (a *asked) answers(known bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.err = known, err
}

// A process dies between its lease and its call, or between its call and the record. Another finds the key after the lease, does not know which it
// was, and does what the policy says.
func TestUnknownOutcomeAfterACrash(t *testing.T) {
	for _, point := range []faultpoint.Point{faultpoint.LeaseAcquired, faultpoint.Called} {
		called := map[faultpoint.Point]int{faultpoint.Called: 1}[point]
		t.Run(string(point), func(t *testing.T) {
			eachStore(t, func(t *testing.T, h *harness) {
				for name, policy := range map[string]struct {
					unknown idempotency.UnknownPolicy
					known   bool
					window  time.Duration
					state   keystore.State
					calls   int // more
					reason  string
				}{
					"default is park":     {state: keystore.InDoubt, reason: "outcome-unknown"},
					"park":                {unknown: idempotency.UnknownPark, state: keystore.InDoubt, reason: "outcome-unknown"},
					"retry":               {unknown: idempotency.UnknownRetry, state: keystore.Completed, calls: 1},
					"retry in the window": {unknown: idempotency.UnknownRetry, window: time.Hour, state: keystore.Completed, calls: 1},
					"retry after it":      {unknown: idempotency.UnknownRetry, window: time.Nanosecond, state: keystore.InDoubt, reason: "retry-window-over"},
					"probe, known":        {unknown: idempotency.UnknownProbe, known: true, state: keystore.Completed},
					"probe, not known":    {unknown: idempotency.UnknownProbe, state: keystore.Completed, calls: 1},
				} {
					var outside provider
					b := idempotency.Binding{Lease: 50 * time.Millisecond, External: external(outside.call)}
					b.External.Unknown, b.External.Window = policy.unknown, policy.window
					b.External.Probe = (&asked{known: policy.known}).probe
					msg := newMessage(name, name)
					h.dies(t, b, point, msg)
					h.leaseIsOver(t, name)
					b.Lease = time.Hour
					heir := h.newEngine(t, b)
					heir.acked(t, redelivered(msg), redelivered(msg))
					require.Equal(t, called+policy.calls, outside.of(name), name)
					record := h.key(t, scope, name)
					require.Equal(t, policy.state, record.State, name)
					require.Equal(t, 1, heir.events(idempotency.EventTakeover), name)
					if policy.state == keystore.InDoubt {
						require.Zero(t, h.effectsOf(t, name))
						require.Equal(t, 1, heir.events(idempotency.EventKind("in_doubt:"+policy.reason)), name)
						require.Equal(t, 1, heir.events(idempotency.EventWaiting), "a copy of what is in doubt is not needed and never runs")
					} else {
						require.Equal(t, 1, h.effectsOf(t, name), name)
					}
					if policy.known {
						require.JSONEq(t, `"found"`, string(record.Result), "the provider's answer is the result")
					}
				}
			})
		})
	}
}

// A call says itself that its outcome is not known, runs into its timeout, or panics: all the same.
func TestUnknownOutcomeOfACall(t *testing.T) {
	calls := map[string]callFunc{
		"unknown": func(context.Context, *message.Message, string, string) (any, error) {
			return nil, fmt.Errorf("charge: %w", handlers.Unknown(errBroken))
		},
		"unknown and permanent": func(context.Context, *message.Message, string, string) (any, error) {
			return nil, handlers.Unknown(handlers.Permanent("declined", "perhaps"))
		},
		"deadline": func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"late success": func(ctx context.Context, _ *message.Message, _, _ string) (any, error) {
			<-ctx.Done()
			return "done", nil
		},
		"panic": func(context.Context, *message.Message, string, string) (any, error) { panic("in the middle") },
	}
	eachStore(t, func(t *testing.T, h *harness) {
		for name, call := range calls {
			b := idempotency.Binding{Scope: "svc/park-" + name, Timeout: 300 * time.Millisecond, External: external(call)}
			parks := h.newEngine(t, b)
			parks.acked(t, newMessage("key", "1"))
			require.Equal(t, keystore.InDoubt, h.key(t, b.Scope, "key").State, name)

			// With retry the second call is made at once, and its answer counts.
			var n atomic.Int64
			b.Scope, b.External = "svc/retry-"+name, external(func(ctx context.Context, msg *message.Message, scope, key string) (any, error) {
				if n.Add(1) == 1 {
					return call(ctx, msg, scope, key)
				}
				return "done", nil
			})
			b.External.Unknown = idempotency.UnknownRetry
			retries := h.newEngine(t, b)
			retries.acked(t, newMessage("key", "1"))
			require.Equal(t, keystore.Completed, h.key(t, b.Scope, "key").State, name)
			require.EqualValues(t, 2, n.Load(), name)
			require.Equal(t, 1, retries.events(idempotency.EventTakeover), "the doubt was kept until the second call")
		}
		require.Len(t, h.rows(t, parking.InDoubt), len(calls))
		require.Equal(t, len(calls), h.effects(t))
	})
}

// The provider cannot be asked for a while: the doubt stays, nothing is called, and in the end it is in doubt, not failed.
func TestProbeFails(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		var provider asked
		provider.answers(false, errBroken)
		b := idempotency.Binding{Lease: 50 * time.Millisecond, Retry: idempotency.Retry{InProcess: -1, Attempts: 3}, External: external(outside.call)}
		b.External.Unknown, b.External.Probe = idempotency.UnknownProbe, provider.probe
		for _, key := range []string{"answers later", "never answers"} {
			h.dies(t, b, faultpoint.Called, newMessage(key, "1"))
			h.leaseIsOver(t, key)
		}
		b.Lease = time.Hour
		heir := h.newEngine(t, b)
		heir.acked(t, newMessage("answers later", "1"), newMessage("never answers", "1"))
		require.Len(t, h.rows(t, parking.Waiting), 2)
		require.Equal(t, keystore.InProgress, h.key(t, scope, "never answers").State)
		for range 2 {
			h.feedNow(t, heir)
		}
		require.Equal(t, 1, outside.of("never answers"), "it was called before the crash and not again")
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "never answers").State)
		rows := h.rows(t)
		require.Len(t, rows, 2)
		require.Equal(t, parking.InDoubt, rows[0].State)
		require.Equal(t, "outcome-unknown", rows[0].Reason)
		require.Zero(t, heir.events(idempotency.EventDead))

		// A person says that it never happened: it runs again.
		provider.answers(true, nil)
		id := keystore.ID{Scope: scope, Key: "answers later"}
		require.NoError(t, h.Keys().Resolve(t.Context(), id, keystore.Absent, nil, "test", ""))
		require.Equal(t, 1, h.runDue(t, heir))
		require.Equal(t, 2, outside.of("answers later"))
		require.Equal(t, 1, h.effects(t))
	})
}

// A failure of the repeated call says nothing of the first one: the doubt stays, also over many repetitions, the window counts from
// the first call, and it ends in doubt and not as a failure.
func TestRetryKeepsTheDoubt(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		b := idempotency.Binding{Retry: idempotency.Retry{InProcess: -1, Attempts: 4}, External: external(func(context.Context, *message.Message, string, string) (any, error) {
			if calls.Add(1) == 1 {
				return nil, handlers.Unknown(errBroken)
			}
			return nil, errBroken // surely nothing happened, this time
		})}
		b.External.Unknown, b.External.Window = idempotency.UnknownRetry, time.Hour
		e := h.newEngine(t, b)
		e.acked(t, newMessage("key", "1"))
		first := h.key(t, scope, "key").FirstAt
		h.feedNow(t, e)
		require.Equal(t, keystore.InProgress, h.key(t, scope, "key").State)
		require.Equal(t, first, h.key(t, scope, "key").FirstAt)
		b.External.Window = time.Nanosecond
		late := h.newEngine(t, b)
		h.feedNow(t, late)
		require.EqualValues(t, 2, calls.Load(), "the provider's window is over")
		require.Equal(t, "retry-window-over", h.rows(t, parking.InDoubt)[0].Reason)
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "key").State)
	})
}

// A provider's refusal of the repeated call is its answer for the key, the first call included.
func TestRetryIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		b := idempotency.Binding{External: external(func(context.Context, *message.Message, string, string) (any, error) {
			if calls.Add(1) == 1 {
				return nil, handlers.Unknown(errBroken)
			}
			return nil, refusal{"declined"}
		})}
		b.External.Unknown = idempotency.UnknownRetry
		e := h.newEngine(t, b)
		e.acked(t, newMessage("key", "1"), newMessage("key", "1"))
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, keystore.Failed, h.key(t, scope, "key").State)
		require.Equal(t, "declined", h.dead(t).Reason)
	})
}

func TestRetriesExhaustedInDoubt(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		b := idempotency.Binding{CrashLimit: 2, Retry: idempotency.Retry{InProcess: time.Hour, Attempts: 8}, External: external(func(context.Context, *message.Message, string, string) (any, error) {
			if calls.Add(1)%2 == 1 {
				return nil, handlers.Unknown(errBroken)
			}
			return nil, errBroken
		})}
		b.External.Unknown = idempotency.UnknownRetry
		e := h.newEngine(t, b)
		e.acked(t, newMessage("key", "1"), newMessage("key", "1"))
		require.EqualValues(t, 8, calls.Load(), "timeouts of the provider are attempts, no crashes of the process")
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "key").State)
		rows := h.rows(t)
		require.Len(t, rows, 1)
		require.Equal(t, parking.InDoubt, rows[0].State)
		require.Equal(t, 8, rows[0].Attempts)
		require.Equal(t, 1, e.events(idempotency.EventInDoubt))
		require.Zero(t, e.events(idempotency.EventDead))
	})
}

// A call that kills its process again and again is in doubt after the limit, by takeovers.
func TestF042ExternalKiller(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const limit = 2
		var outside provider
		b := idempotency.Binding{CrashLimit: limit, Lease: 50 * time.Millisecond, External: external(outside.call)}
		b.External.Unknown = idempotency.UnknownRetry
		for range limit + 1 {
			h.dies(t, b, faultpoint.Called, newMessage("killer", "1"))
			h.leaseIsOver(t, "killer")
		}
		heir := h.newEngine(t, b)
		heir.acked(t, newMessage("killer", "1"))
		require.Equal(t, limit+1, outside.of("killer"))
		require.Equal(t, 1, heir.events("in_doubt:crashed"))
		require.Equal(t, keystore.InDoubt, h.key(t, scope, "killer").State)
	})
}

// What a person decides about a message in doubt is done, and nothing else.
func TestResolveInDoubt(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		for to, want := range map[keystore.State]struct {
			calls, effects int
			row            parking.State
		}{
			keystore.Completed: {calls: 1},
			keystore.Absent:    {calls: 2, effects: 1},
			keystore.Failed:    {calls: 1, row: parking.Dead},
		} {
			key := "resolved-" + string(to)
			var outside provider
			var first atomic.Bool
			e := h.newEngine(t, idempotency.Binding{External: external(func(ctx context.Context, msg *message.Message, scope, key string) (any, error) {
				_, _ = outside.call(ctx, msg, scope, key)
				if first.CompareAndSwap(false, true) {
					return nil, handlers.Unknown(errBroken)
				}
				return "done", nil
			})})
			e.acked(t, newMessage(key, "1"))
			require.NoError(t, h.Keys().Resolve(t.Context(), keystore.ID{Scope: scope, Key: key}, to, nil, "test", "asked the provider"))
			h.runDue(t, e)
			e.acked(t, newMessage(key, "1"))
			require.Equal(t, want.calls, outside.of(key), string(to))
			require.Equal(t, want.effects, h.effectsOf(t, key), string(to))
			rows := h.rows(t)
			if want.row == "" {
				require.Empty(t, rows, string(to))
				continue
			}
			require.Equal(t, want.row, rows[0].State)
			require.NoError(t, h.Parking().Drop(t.Context(), rows[0].ID, parking.Action{By: "test"}))
		}
	})
}

// A scope whose handler was external before and is transactional now: what was left in progress runs, and is not taken for a duplicate.
func TestTransactionalTakesAnExternalKeyOver(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var outside provider
		h.dies(t, idempotency.Binding{Lease: 50 * time.Millisecond, External: external(outside.call)}, faultpoint.LeaseAcquired, newMessage("key", "1"))
		h.leaseIsOver(t, "key")
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		e.acked(t, newMessage("key", "1"))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "key").State)
		require.Equal(t, 1, e.events(idempotency.EventTakeover))
	})
}
