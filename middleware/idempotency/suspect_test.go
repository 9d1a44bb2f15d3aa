package idempotency_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// crash is what a process leaves in the store that dies while it runs the suspect of a key.
func (h *harness) crash(t *testing.T, scope, key string) {
	t.Helper()
	_, err := h.Keys().Suspect(t.Context(), keystore.ID{Scope: scope, Key: key})
	require.NoError(t, err)
}

func (h *harness) suspected(t *testing.T, scope, key string) int {
	t.Helper()
	attempt, err := h.Keys().Attempt(t.Context(), keystore.ID{Scope: scope, Key: key})
	require.NoError(t, err)
	return attempt.Suspected
}

// A message that kills its process is a dead letter "crashed" after the limit; it is not run once more for that.
func TestF042TheKillerIsIsolated(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{CrashLimit: 5, Handler: failing(func(*message.Message) error {
			calls.Add(1)
			return nil
		})})
		for range 5 {
			h.crash(t, scope, "killer")
		}
		killer := newMessage("killer", "1")
		e.acked(t, redelivered(killer))
		require.Zero(t, calls.Load())
		require.Equal(t, "crashed", h.dead(t).Reason)
		require.Equal(t, keystore.Failed, h.key(t, scope, "killer").State)
		e.acked(t, redelivered(killer))
		require.Equal(t, 1, e.events(idempotency.EventRejected))
	})
}

// A message that met a kill now and then is innocent: its count goes back when a process lives to see its end.
func TestF042TheTwiceKilledIsInnocent(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{CrashLimit: 2, Handler: effect})
		h.crash(t, scope, "key")
		e.acked(t, redelivered(newMessage("key", "1")))
		require.Equal(t, 1, h.effects(t))
		require.Equal(t, 1, h.suspected(t, scope, "key"))
		h.crash(t, scope, "key")
		h.crash(t, scope, "key")
		for range 5 { // the redeliveries of what is completed are no suspects, whatever was counted
			e.acked(t, redelivered(newMessage("key", "1")))
		}
		require.Equal(t, 3, h.suspected(t, scope, "key"))
		require.Equal(t, 5, e.events(idempotency.EventDuplicate))
		require.Empty(t, h.rows(t))
	})
}

// Every ending that the process lives to see takes the count back.
func TestF042EveryEndingAbsolves(t *testing.T) {
	endings := map[string]struct {
		run  error
		back bool
	}{"success": {}, "transient": {run: errBroken}, "permanent": {run: refusal{"no"}}, "panic": {}, "handed back": {back: true}}
	eachStore(t, func(t *testing.T, h *harness) {
		for name, ending := range endings {
			entered := make(chan struct{})
			e := h.newEngine(t, idempotency.Binding{
				Scope: "svc/" + name, Retry: idempotency.Retry{InProcess: -1},
				Handler: func(ctx context.Context, _ *idempotency.Tx, _ *message.Message) (any, error) {
					if name == "panic" {
						panic("it was me")
					}
					if ending.back {
						close(entered)
						<-ctx.Done()
					}
					return nil, ending.run
				}})
			wait := e.deliver(redelivered(newMessage("key", "1")))
			if ending.back {
				await(t, entered, "the handler runs")
				require.Equal(t, 1, h.suspected(t, e.scope, "key"), "it is counted before it runs")
				over, cancel := context.WithCancel(t.Context())
				cancel()
				e.Stop()
				require.Error(t, e.Wait(over))
			}
			require.Equal(t, ending.back, wait()[0] != nil, name)
			require.Zero(t, h.suspected(t, e.scope, "key"), name)
		}
	})
}

// A suspect runs alone: nobody of any binding of the process is inside with it, and who comes later waits.
func TestF066SuspectsRunAlone(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var gate idempotency.Gate
		var inside, alone atomic.Int64
		probe := func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
			inside.Add(1)
			defer inside.Add(-1)
			if string(msg.Payload) == "suspect" {
				alone.Add(1)
				for range 20 {
					if n := inside.Load(); n != 1 {
						t.Errorf("%d handlers run beside a suspect", n-1)
					}
					time.Sleep(100 * time.Microsecond)
				}
			}
			return effect(ctx, tx, msg)
		}
		shared := func(c *idempotency.Config) { c.Gate = &gate }
		pay := h.newEngine(t, idempotency.Binding{Handler: probe}, shared)
		mail := h.newEngine(t, idempotency.Binding{Scope: "svc/mail", Handler: probe}, shared)
		var waits []func() []error
		for i := range 10 {
			waits = append(waits,
				pay.deliver(newMessage(fmt.Sprintf("good-%d", i), "good"), redelivered(newMessage(fmt.Sprintf("s-%d", i), "suspect"))),
				mail.deliver(newMessage(fmt.Sprintf("good-%d", i), "good"), redelivered(newMessage(fmt.Sprintf("s-%d", i), "suspect"))))
		}
		for _, wait := range waits {
			for _, err := range wait() {
				require.NoError(t, err)
			}
		}
		require.EqualValues(t, 20, alone.Load())
		require.Equal(t, 40, h.effects(t))
	})
}

// The race of a killer among innocents: process after process dies of it, with everything redelivered each time. The killer is a
// dead letter in the end, none of the innocents is, and each has its effect once.
func TestF066AKillerAmongInnocents(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		const innocents, limit = 9, 3
		pending := map[string]*message.Message{"killer": newMessage("killer", "killer")}
		for i := range innocents {
			key := fmt.Sprintf("good-%d", i)
			pending[key] = newMessage(key, "good")
		}
		deliveries, crashes := 0, 0
		for ; len(pending) > 0; deliveries++ {
			require.Less(t, deliveries, limit+3, "the killer is not isolated")
			died := h.process(t, pending, limit, deliveries > 0)
			if died {
				crashes++
			}
		}
		require.Equal(t, innocents, h.effects(t))
		require.Equal(t, innocents, h.count(t, `SELECT count(DISTINCT k) FROM effects`))
		require.Equal(t, "killer", h.dead(t).Key)
		require.Equal(t, "crashed", h.dead(t).Reason)
		require.LessOrEqual(t, crashes, limit+1)
		for i := range innocents {
			// One that committed while its process died keeps that count.
			require.Less(t, h.suspected(t, scope, fmt.Sprintf("good-%d", i)), limit)
		}
	})
}

// process runs one process until it has acked everything pending or died: when the killer's handler runs, nothing that was not
// acked before is, its transactions roll back, and the counts of suspects that ran at that moment stay.
func (h *harness) process(t *testing.T, pending map[string]*message.Message, limit int, again bool) (died bool) {
	t.Helper()
	dying := make(chan struct{})
	var kill sync.Once
	e := h.newEngine(t, idempotency.Binding{CrashLimit: limit, Handler: func(ctx context.Context, tx *idempotency.Tx, msg *message.Message) (any, error) {
		if string(msg.Payload) == "killer" {
			kill.Do(func() { close(dying) })
			<-ctx.Done()
		}
		return effect(ctx, tx, msg)
	}}, func(c *idempotency.Config) { c.Keys = unforgiving{h.Keys(), dying} })
	var mu sync.Mutex
	var all sync.WaitGroup
	over, cut := context.WithCancel(context.Background())
	defer cut()
	for key, msg := range maps.Clone(pending) {
		if again {
			msg = redelivered(msg)
		}
		all.Go(func() {
			if err := e.Process(msg); err == nil {
				mu.Lock()
				defer mu.Unlock()
				delete(pending, key)
			}
		})
	}
	finished := make(chan struct{})
	go func() { all.Wait(); close(finished) }()
	select {
	case <-dying:
		died = true
		cut()
		e.Stop()
		_ = e.Wait(over)
	case <-finished:
	}
	<-finished
	return died
}

// unforgiving is the store of a process that may die: what dies takes no count back.
type unforgiving struct {
	keystore.Store
	dying <-chan struct{}
}

func (u unforgiving) Absolve(ctx context.Context, id keystore.ID) error {
	select {
	case <-u.dying:
		return nil
	default:
		return u.Store.Absolve(ctx, id)
	}
}

// A parked row whose feeder's lease ended by time may have killed that feeder's process; one that was given back has not.
func TestF042ParkedSuspects(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{CrashLimit: 1, Handler: effect})
		require.NoError(t, h.Parking().Park(t.Context(), []parking.Row{{State: parking.Waiting, Scope: scope, Topic: topic, UUID: "u", Key: "key", Payload: []byte("1")}}))
		h.leased(t, scope, time.Millisecond) // its holder dies
		h.crash(t, scope, "key")
		eventually(t, "the lease is over", func() bool {
			due, waits, err := h.Parking().NextDue(t.Context(), []string{scope})
			return err == nil && waits && due <= 0
		})
		row := h.leased(t, scope, time.Minute)
		require.True(t, row.Suspect)
		require.NoError(t, e.RunParked(t.Context(), row))
		require.Equal(t, "crashed", h.dead(t).Reason)

		h.redrive(t, h.dead(t).ID, "")
		require.Equal(t, 1, h.runDue(t, e), "what a person sends back runs")
		require.Equal(t, 1, h.effects(t))
	})
}

// A suspect without a key is told by its UUID.
func TestF042KeylessSuspects(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{CrashLimit: 1, Missing: envelope.MissingPass, Handler: effect})
		killer := newMessage("", "killer")
		h.crash(t, scope, "uuid:"+killer.UUID)
		e.acked(t, redelivered(killer), redelivered(newMessage("", "good")))
		require.Equal(t, []string{"good"}, h.values(t))
		require.Equal(t, "crashed", h.dead(t).Reason)
	})
}
