package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
	"github.com/oncemill/oncemill/middleware/idempotency"
	"github.com/oncemill/oncemill/middleware/keystore"
	"github.com/oncemill/oncemill/middleware/parking"
)

// One key with another payload is never executed and never passed off as a duplicate, whatever the first one's state is.
func TestF010MismatchWhileCompleted(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		e.acked(t, newMessage("ord-9", "100.00"), newMessage("ord-9", "250.00"), newMessage("ord-9", "250.00"))
		require.Equal(t, []string{"100.00"}, h.values(t))
		require.Equal(t, 2, e.events("dead_letter:payload-mismatch"))
		row := h.dead(t) // a duplicate of a bad message is no second dead letter
		require.Equal(t, "payload-mismatch", row.Reason)
		require.Equal(t, "250.00", string(row.Payload))
		require.Equal(t, keystore.Completed, h.key(t, scope, "ord-9").State)
		e.acked(t, newMessage("ord-9", "100.00"))
		require.Equal(t, 1, e.events(idempotency.EventDuplicate))
	})
}

func TestF010MismatchWhileRunning(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		hold := newBreakpoint(t, "handler")
		b := idempotency.Binding{Handler: failing(func(*message.Message) error {
			hold.hit()
			return nil
		})}
		e := h.newEngine(t, b)
		first := e.deliver(newMessage("ord-9", "100.00"))
		hold.await(t)
		second := e.deliver(newMessage("ord-9", "250.00"))
		hold.release()
		require.NoError(t, first()[0])
		require.NoError(t, second()[0])
		require.Equal(t, []string{"100.00"}, h.values(t))
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
	})
}

func TestF010MismatchWhileWaiting(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var broken atomic.Bool
		broken.Store(true)
		e := h.newEngine(t, idempotency.Binding{
			Retry: idempotency.Retry{InProcess: -1},
			Handler: failing(func(*message.Message) error {
				if broken.Load() {
					return errBroken
				}
				return nil
			})})
		e.acked(t, newMessage("ord-9", "100.00"))
		require.Len(t, h.rows(t, parking.Waiting), 1)
		e.acked(t, newMessage("ord-9", "250.00"))
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
		require.Equal(t, keystore.Absent, h.key(t, scope, "ord-9").State, "the mismatch does not take the key")
		broken.Store(false)
		h.feedNow(t, e)
		require.Equal(t, []string{"100.00"}, h.values(t))
		require.Equal(t, keystore.Completed, h.key(t, scope, "ord-9").State)
	})
}

// A mismatch that is found while the other message holds a lease leaves the key to it, also when it has given it up by the time of the burial.
func TestF010MismatchDoesNotTakeAFreedKey(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		calling, buried := newBreakpoint(t, "call"), newBreakpoint(t, faultpoint.BeforeDeadLetter)
		var calls atomic.Int64
		ext := &idempotency.External{Call: func(context.Context, *message.Message, string, string) (any, error) {
			calling.hit()
			if calls.Add(1) == 1 {
				return nil, errBroken
			}
			return "done", nil
		}}
		parks := newBreakpoint(t, faultpoint.BeforeParking)
		first := h.newEngine(t, idempotency.Binding{External: ext, Retry: idempotency.Retry{InProcess: -1}}, withFault(parks.fault))
		second := h.newEngine(t, idempotency.Binding{External: ext}, withFault(buried.fault))
		one := first.deliver(newMessage("ord-9", "100.00"))
		calling.await(t)
		two := second.deliver(newMessage("ord-9", "250.00"))
		buried.await(t)
		calling.release()
		parks.await(t) // the key is given back, and nothing is parked yet
		require.Equal(t, keystore.Absent, h.key(t, scope, "ord-9").State)
		buried.release()
		require.NoError(t, two()[0])
		parks.release()
		require.NoError(t, one()[0])
		require.Equal(t, "payload-mismatch", h.dead(t).Reason)
		h.feedNow(t, first)
		require.Equal(t, keystore.Completed, h.key(t, scope, "ord-9").State)
		require.EqualValues(t, 2, calls.Load())
	})
}

// keyless are five messages without a usable key, as one producer sends them.
func keyless() []*message.Message {
	absent, again, empty, blank, null := newMessage("", "1"), newMessage("", "2"), newMessage("", "3"), newMessage("   ", "4"), newMessage("", "5")
	for _, msg := range []*message.Message{absent, again, null} {
		delete(msg.Metadata, envelope.KeyHeader)
	}
	null.SetContext(envelope.WithDelivery(context.Background(), envelope.Delivery{Apart: map[string]string{envelope.KeyHeader: "null"}}))
	return []*message.Message{absent, again, empty, blank, null}
}

func TestF012NoKeyRejected(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		e.acked(t, keyless()...)
		e.acked(t, keyless()...)
		require.Zero(t, h.effects(t))
		rows := h.rows(t, parking.Dead)
		require.Len(t, rows, 10, "no two share a dead letter")
		for _, row := range rows {
			require.Equal(t, envelope.RuleKeyMissing, row.Reason)
		}
		require.Zero(t, h.count(t, `SELECT count(*) FROM processed_events`))
	})
}

func TestF012NoKeyPassed(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var failures atomic.Int64
		e := h.newEngine(t, idempotency.Binding{
			Missing: envelope.MissingPass, Retry: idempotency.Retry{InProcess: -1},
			Handler: failing(func(*message.Message) error {
				if failures.Add(1) <= 5 {
					return errBroken
				}
				return nil
			})})
		e.acked(t, keyless()...)
		require.Len(t, h.rows(t, parking.Waiting), 5, "all of the first five wait, none takes another's row")
		e.acked(t, keyless()...)
		require.Equal(t, 5, h.effects(t))
		h.feedNow(t, e)
		require.Equal(t, 10, h.effects(t))
		require.Empty(t, h.rows(t))
		require.Zero(t, h.count(t, `SELECT count(*) FROM processed_events`))
		require.Equal(t, 15, e.events(idempotency.EventKeyless))
	})
}

func TestF012NoKeyDerived(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Missing: envelope.MissingDerive, Handler: effect})
		e.acked(t, keyless()...)
		e.acked(t, keyless()...)
		require.Equal(t, 5, h.effects(t))
		require.Equal(t, 5, e.events(idempotency.EventDuplicate))
		e.acked(t, newMessage("", ""))
		require.Equal(t, envelope.RuleKeyMissing, h.dead(t).Reason, "nothing can be derived from nothing")
	})
}

// A row without a key is judged by the policy that holds when it runs.
func TestF012PolicyChangedBeforeRedrive(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		rejects := h.newEngine(t, idempotency.Binding{Handler: effect})
		rejects.acked(t, newMessage("", "1"), newMessage("", "1"))
		for _, row := range h.rows(t, parking.Dead) {
			h.redrive(t, row.ID, "")
		}
		h.runDue(t, rejects)
		require.Len(t, h.rows(t, parking.Dead), 2)
		for _, row := range h.rows(t, parking.Dead) {
			require.Equal(t, envelope.RuleKeyMissing, row.Reason)
			h.redrive(t, row.ID, "")
		}
		derives := h.newEngine(t, idempotency.Binding{Missing: envelope.MissingDerive, Handler: effect})
		h.runDue(t, derives)
		require.Equal(t, 1, h.effects(t))
		require.Empty(t, h.rows(t))
	})
}

// The same verdict on every store: refused at once, never cut to another key.
func TestF013UnreadableKeys(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect})
		for key, reason := range map[string]string{
			"a\x00b":                 "key-control-character",
			"a\nb":                   "key-control-character",
			"a\x1b[31mb":             "key-control-character",
			"\xff\xfeA":              "metadata-invalid-utf8",
			strings.Repeat("k", 256): "key-too-long",
		} {
			e.acked(t, newMessage(key, "1"), newMessage(key, "2"))
			rows := h.rows(t, parking.Dead)
			require.Len(t, rows, 2, "%q: two payloads are two messages", key)
			for _, row := range rows {
				require.Equal(t, reason, row.Reason, "%q", key)
				require.Equal(t, key, row.Key)
				require.NoError(t, h.Parking().Drop(t.Context(), row.ID, parking.Action{By: "test"}))
			}
		}
		require.Zero(t, h.effects(t))
		for _, key := range []string{"a", "A", "a ", "ключ", strings.Repeat("k", 255)} {
			e.acked(t, newMessage(key, "1"))
			require.Equal(t, 1, h.effectsOf(t, key))
		}
	})
}

// A key source or fingerprint that panics or fails costs the message, not the process.
func TestF013KeySourceBreaks(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		e := h.newEngine(t, idempotency.Binding{Handler: effect, Key: func(msg *message.Message, _ envelope.Delivery) (string, bool, error) {
			switch string(msg.Payload) {
			case "panic":
				panic("no such field")
			case "error":
				return "", false, errors.New("no such field")
			}
			return "key", true, nil
		}})
		e.acked(t, newMessage("", "panic"), newMessage("", "error"), newMessage("", "good"))
		require.Equal(t, []string{"good"}, h.values(t))
		require.Equal(t, 2, e.events("dead_letter:key-unreadable"))
	})
}

type refusal struct{ code string }

func (r refusal) Error() string     { return "refused: " + r.code }
func (r refusal) Permanent() string { return r.code }

// A bad body is a dead letter after one delivery, and the good ones behind it finish, also without any library's id header.
func TestF035MalformedMessages(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		var calls atomic.Int64
		e := h.newEngine(t, idempotency.Binding{MaxPayload: 100, Handler: failing(func(msg *message.Message) error {
			if !strings.HasPrefix(string(msg.Payload), "{") {
				calls.Add(1)
				return refusal{"payload-not-json"}
			}
			return nil
		})})
		foreign := newMessage("foreign", "{}")
		foreign.UUID, foreign.Metadata = "", message.Metadata{envelope.KeyHeader: "foreign"}
		nilMetadata := message.NewMessage("", []byte("{}"))
		nilMetadata.Metadata = nil
		e.acked(t, newMessage("bad", "<xml/>"), newMessage("empty", ""), newMessage("large", strings.Repeat("x", 101)), nilMetadata,
			newMessage("order", "{}", envelope.OrderingKeyHeader, "a\nb"), foreign, newMessage("good", "{}"))
		require.EqualValues(t, 2, calls.Load(), "one run for each that the handler refuses")
		reasons := map[string]int{}
		for _, row := range h.rows(t, parking.Dead) {
			reasons[row.Reason]++
		}
		require.Equal(t, map[string]int{
			"payload-not-json": 2, envelope.RulePayloadTooLarge: 1, envelope.RuleKeyMissing: 1, "ordering-key-control-character": 1,
		}, reasons)
		require.Equal(t, 2, h.effects(t))
		require.Equal(t, 1, h.effectsOf(t, "foreign"))
	})
}

// A message that was too large is run when a person sends it back, under the key that it came with.
func TestF035RedriveAfterTheRuleChanged(t *testing.T) {
	eachStore(t, func(t *testing.T, h *harness) {
		strict := h.newEngine(t, idempotency.Binding{MaxPayload: 3, Handler: effect})
		strict.acked(t, newMessage("large", "1234"))
		h.redrive(t, h.dead(t).ID, "")
		patient := h.newEngine(t, idempotency.Binding{Handler: effect, Retention: time.Hour})
		h.runDue(t, patient)
		require.Equal(t, 1, h.effectsOf(t, "large"))
		patient.acked(t, newMessage("large", "1234"))
		require.Equal(t, 1, patient.events(idempotency.EventDuplicate))
	})
}
