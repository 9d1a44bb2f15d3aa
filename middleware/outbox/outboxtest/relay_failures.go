package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/outbox"
)

var relayFailureTests = []test{
	{"F060UnpublishableAtTheHead", failuresAtTheHead},
	{"F060ContractAtTheHead", failuresContract},
	{"F062Unroutable", failuresUnroutable},
	{"OutageSetsNothingAside", failuresOutage},
	{"UnmarkedOutageSetsNothingAside", failuresUnmarkedOutage},
	{"F061LongOutage", failuresLongOutage},
	{"OneTopicAway", failuresOneTopic},
	{"RefusedIsSetAsideInTheEnd", failuresRefused},
	{"FailureHoldsBackItsOrderingKey", failuresOrder},
	{"AsideLetsItsOrderingKeyGoOn", failuresAsideOrder},
	{"MissingOutcomesAreFailures", failuresMissingOutcomes},
}

// tally counts what the observer is told, by cause.
type tally struct {
	mu            sync.Mutex
	failed, aside map[outbox.Cause]int
}

func observe(cfg *outbox.RelayConfig) *tally {
	c := &tally{failed: map[outbox.Cause]int{}, aside: map[outbox.Cause]int{}}
	count := func(m map[outbox.Cause]int) func(int, outbox.Cause) {
		return func(n int, cause outbox.Cause) {
			c.mu.Lock()
			defer c.mu.Unlock()
			m[cause] += n
		}
	}
	cfg.Observer.Failed, cfg.Observer.Aside = count(c.failed), count(c.aside)
	return c
}

func (c *tally) of(cause outbox.Cause) (failed, aside int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[cause], c.aside[cause]
}

// aside waits until n records are set aside and nothing else is left, and returns them.
func (h Harness) aside(t *testing.T, n int) []outbox.Record {
	t.Helper()
	eventually(t, func() error {
		s, err := h.Source.Status(t.Context())
		if err == nil && (s.Aside != int64(n) || s.Pending != 0) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	list, err := h.Source.List(t.Context(), true, n+1)
	require.NoError(t, err)
	require.Len(t, list, n)
	return list
}

func failuresAtTheHead(t *testing.T, h Harness) {
	bad, good := plain("t", "bad", 150), plain("t", "good", 500)
	h.commit(t, bad...)
	h.commit(t, good...)
	b := &broker{}
	b.rule(func(_ string, m *message.Message) error {
		if strings.HasPrefix(string(m.Payload), "bad") {
			return fmt.Errorf("over the limit: %w", outbox.ErrUnpublishable)
		}
		return nil
	})
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	seen := observe(&cfg)
	start(t, cfg)
	for _, r := range h.aside(t, len(bad)) {
		require.Contains(t, r.Reason, "over the limit")
		require.Equal(t, 1, r.Attempts)
	}
	require.ElementsMatch(t, recordKeys(good), b.keys())
	failed, aside := seen.of(outbox.CauseUnpublishable)
	require.Equal(t, 150, failed)
	require.Equal(t, 150, aside)
}

func failuresContract(t *testing.T, h Harness) {
	large := record("t", "large")
	large.Payload = make([]byte, 300<<10)
	reserved := record("t", "reserved")
	reserved.Metadata = map[string]string{"_watermill_message_uuid": "x"}
	topic := record("no topic", "topic")
	noUUID := record("t", "uuid")
	noUUID.UUID = ""
	h.commit(t, append([]outbox.Record{large, reserved, topic, noUUID}, plain("t", "good", 30)...)...)
	b := &broker{}
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	cfg.MaxPayload = 256 << 10
	start(t, cfg)
	rules := map[string]string{
		"large": envelope.RulePayloadTooLarge, "reserved": envelope.RuleMetadataReserved,
		"topic": envelope.RuleTopicInvalid, "uuid": envelope.RuleUUIDMissing,
	}
	for _, r := range h.aside(t, len(rules)) {
		require.Contains(t, r.Reason, rules[r.Key])
	}
	require.Len(t, b.keys(), 30, "the others of the same batches go out")
}

func failuresUnroutable(t *testing.T, h Harness) {
	h.commit(t, plain("nowhere", "n", 10)...)
	h.commit(t, plain("t", "p", 20)...)
	b := &broker{}
	b.rule(func(topic string, _ *message.Message) error {
		if topic == "nowhere" {
			return fmt.Errorf("exchange nowhere: %w", outbox.ErrUnroutable)
		}
		return nil
	})
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	cfg.MaxAttempts = 2
	seen := observe(&cfg)
	start(t, cfg)
	eventually(t, func() error {
		if failed, _ := seen.of(outbox.CauseUnroutable); failed < 50 || len(b.taken()) < 20 {
			return fmt.Errorf("%d failures, %d published", failed, len(b.taken()))
		}
		return nil
	})
	s, err := h.Source.Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, s.Pending, "none is done, none is set aside")
	b.rule(nil)
	empty(t, h.Source)
	require.Len(t, b.taken(), 30)
}

// outage fails every batch for a while, many more times than MaxAttempts, and then none. Where the broker was up before, the relay
// knows that it can be reached.
func outage(t *testing.T, h Harness, upBefore bool, fail error) *tally {
	t.Helper()
	b := &broker{}
	var mu sync.Mutex
	batches, up := 0, upBefore
	cfg := h.config(t, h.Source, &publisher{broker: b, before: func(context.Context, string, []*message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if batches++; !up {
			return fail
		}
		return nil
	}}, "a")
	cfg.MaxAttempts = 2
	seen := observe(&cfg)
	start(t, cfg)
	if upBefore {
		h.commit(t, record("t", "before"))
		empty(t, h.Source)
	}
	mu.Lock()
	up = false
	mu.Unlock()
	h.commit(t, plain("t", "p", 30)...)
	h.commit(t, ordered("t", "k", 0, 10)...)
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if batches < 40 {
			return fmt.Errorf("%d batches", batches)
		}
		return nil
	})
	mu.Lock()
	up = true
	mu.Unlock()
	empty(t, h.Source)
	require.Len(t, b.keys(), len(b.taken()))
	requireOrder(t, b, "k", 10)
	return seen
}

func failuresOutage(t *testing.T, h Harness) {
	seen := outage(t, h, true, fmt.Errorf("no connection: %w", outbox.ErrUnavailable))
	failed, aside := seen.of(outbox.CauseUnavailable)
	require.Positive(t, failed)
	require.Zero(t, aside)
}

func failuresUnmarkedOutage(t *testing.T, h Harness) {
	t.Run("net", func(t *testing.T) {
		seen := outage(t, h, true, fmt.Errorf("write: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}))
		failed, _ := seen.of(outbox.CauseUnavailable)
		require.Positive(t, failed)
	})
	t.Run("any", func(t *testing.T) {
		seen := outage(t, h, false, errors.New("channel is closed"))
		failed, aside := seen.of(outbox.CauseRefused)
		require.Positive(t, failed)
		require.Zero(t, aside)
	})
}

// failuresLongOutage: a backlog that grew while the broker was away is visible, goes out when it is back, each record once, and the
// relay never has more of it in hand than its batch.
func failuresLongOutage(t *testing.T, h Harness) {
	const backlog, batch = 600, 50
	b := &broker{}
	var up atomic.Bool
	var tried, inHand, most atomic.Int64
	cfg := h.config(t, h.Source, &publisher{broker: b, before: func(_ context.Context, _ string, msgs []*message.Message) error {
		n := inHand.Add(int64(len(msgs)))
		defer inHand.Add(-int64(len(msgs)))
		most.Store(max(most.Load(), n))
		tried.Add(1)
		if !up.Load() {
			return fmt.Errorf("no connection: %w", outbox.ErrUnavailable)
		}
		return nil
	}}, "a")
	cfg.Batch = batch
	start(t, cfg)
	for i := range backlog / 30 {
		h.commit(t, plain("t", fmt.Sprint("p", i, "-"), 30)...)
	}
	eventually(t, func() error {
		if n := tried.Load(); n < 20 {
			return fmt.Errorf("%d batches were tried", n)
		}
		return nil
	})
	s, err := h.Source.Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, backlog, s.Pending)
	require.Positive(t, s.OldestAge)
	up.Store(true)
	empty(t, h.Source)
	require.Len(t, b.taken(), backlog)
	require.Len(t, b.keys(), backlog)
	require.LessOrEqual(t, most.Load(), int64(batch))
}

// failuresOneTopic: a topic that cannot be reached for long holds back no other, however many records it has.
func failuresOneTopic(t *testing.T, h Harness) {
	h.commit(t, plain("away", "a", 300)...)
	h.commit(t, plain("t", "p", 50)...)
	b := &broker{}
	b.rule(func(topic string, _ *message.Message) error {
		if topic == "away" {
			return fmt.Errorf("no leader: %w", outbox.ErrUnavailable)
		}
		return nil
	})
	start(t, h.config(t, h.Source, &publisher{broker: b}, "a"))
	eventually(t, func() error {
		if n := len(b.taken()); n < 50 {
			return fmt.Errorf("%d published", n)
		}
		return nil
	})
	b.rule(nil)
	empty(t, h.Source)
	require.Len(t, b.taken(), 350)
}

func failuresRefused(t *testing.T, h Harness) {
	h.commit(t, record("t", "bad"))
	b := &broker{}
	b.rule(func(_ string, m *message.Message) error {
		if string(m.Payload) == "bad" {
			return errors.New("the broker does not like it")
		}
		return nil
	})
	cfg := h.config(t, h.Source, &publisher{broker: b}, "a")
	cfg.MaxAttempts = 4
	seen := observe(&cfg)
	start(t, cfg)
	// A refusal counts only while the broker takes other messages, however slow the store is.
	eventually(t, func() error {
		h.commit(t, record("t", "good"))
		list, err := h.Source.List(t.Context(), true, 1)
		if err == nil && len(list) == 0 {
			err = errors.New("not set aside")
		}
		return err
	})
	r := h.aside(t, 1)[0]
	require.Equal(t, 4, r.Attempts)
	require.Contains(t, r.Reason, "4 attempts")
	require.Contains(t, r.Reason, "does not like it")
	_, aside := seen.of(outbox.CauseRefused)
	require.Equal(t, 1, aside)

	b.rule(nil)
	n, err := h.Source.Retry(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	empty(t, h.Source)
}

func failuresOrder(t *testing.T, h Harness) {
	for _, orderedBatch := range []bool{false, true} {
		t.Run(fmt.Sprintf("OrderedBatch=%t", orderedBatch), func(t *testing.T) {
			h.commit(t, ordered("t", "k", 0, 8)...)
			h.commit(t, plain("t", "p", 20)...)
			b := &broker{}
			left := 5
			othersFirst := false
			b.rule(func(_ string, m *message.Message) error {
				switch {
				case string(m.Payload) != "k-003" || left == 0:
					return nil
				case left == 1:
					othersFirst = len(b.took) == 3+20
				}
				left--
				return errors.New("not yet")
			})
			cfg := h.config(t, h.Source, &publisher{broker: b, ordered: orderedBatch}, "a")
			cfg.OrderedBatch, cfg.BackoffMin = orderedBatch, 300*time.Millisecond
			r := start(t, cfg)
			empty(t, h.Source)
			require.NoError(t, r.stop())
			requireOrder(t, b, "k", 8)
			require.True(t, othersFirst, "records of other keys went out meanwhile")
			require.Len(t, b.taken(), 28)
		})
	}
}

func failuresAsideOrder(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 6)...)
	b := &broker{}
	b.rule(func(_ string, m *message.Message) error {
		if string(m.Payload) == "k-002" {
			return outbox.ErrUnpublishable
		}
		return nil
	})
	start(t, h.config(t, h.Source, &publisher{broker: b}, "a"))
	h.aside(t, 1)
	require.Equal(t, []string{"k-000", "k-001", "k-003", "k-004", "k-005"}, b.keys())
}

// mute returns fewer outcomes than it got messages.
type mute struct{ *publisher }

// PublishBatch publishes, and tells of the first message only.
func (m mute) PublishBatch(ctx context.Context, topic string, msgs []*message.Message) []error {
	return m.publisher.PublishBatch(ctx, topic, msgs)[:1]
}

func failuresMissingOutcomes(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 40)...)
	b := &broker{}
	cfg := h.config(t, h.Source, mute{&publisher{broker: b}}, "a")
	cfg.MaxAttempts = 1000
	start(t, cfg)
	empty(t, h.Source)
	require.Len(t, b.keys(), 40)
	require.Greater(t, len(b.taken()), 40, "what has no outcome is not taken for published")
}
