package app

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// Two bindings on one topic, each with its own keys, retention and retries: neither sees the other's.
func TestTwoBindingsOfOneTopicHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	l := &tally{}
	var tries [2]atomic.Int64
	handler := func(n int) handlers.Handler {
		return func(ctx context.Context, tx handlers.Tx, msg *message.Message) (any, error) {
			if string(msg.Payload) == `{"id":"poison"}` {
				tries[n].Add(1)
				return nil, errors.New("never")
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO tally (idempotency_key) VALUES (?)`, fmt.Sprint(n, " ", tx.Key()))
			return nil, err
		}
	}
	p := l.plugin()
	p.Open = func(_ func(any) error, b *handlers.Bindings) error {
		b.On(tallyTopic, handler(0), handlers.Named("by-header"))
		b.On(tallyTopic, handler(1), handlers.Named("by-id"))
		return nil
	}
	set := l.set()
	set.Plugins = []handlers.Plugin{p}
	c := newConsole(t, set, "BROKERS__EMBEDDED__MAX_AGE=1d",
		"BINDINGS__BY_HEADER__RETENTION=30d", "BINDINGS__BY_HEADER__RETRY__ATTEMPTS=2",
		"BINDINGS__BY_ID__RETENTION=10d", "BINDINGS__BY_ID__RETRY__ATTEMPTS=4", "BINDINGS__BY_ID__KEY=json:/id",
		"BINDINGS__BY_HEADER__RETRY__IN_PROCESS=30s", "BINDINGS__BY_ID__RETRY__IN_PROCESS=30s",
	)
	run := c.start()

	// One payload under two headers: two operations for one binding, one and its duplicate for the other.
	c.publish(tallyTopic, "first", `{"id":"x"}`)
	c.publish(tallyTopic, "second", `{"id":"x"}`)
	for _, key := range []string{"first", "second"} {
		c.waitKey("oncemill/by-header", key, "completed")
	}
	byHeader, byID := c.waitKey("oncemill/by-header", "first", "completed"), c.waitKey("oncemill/by-id", "x", "completed")
	testenv.Eventually(t, 30*time.Second, func() error {
		return run.counts("oncemill_messages_total", `kind="duplicate",scope="oncemill/by-id"`, 1)
	})
	for effect, want := range map[string]int{"0 first": 1, "0 second": 1, "1 x": 1, "": 3} {
		require.Equal(t, want, c.effects(effect), effect)
	}
	require.InDelta(t, 30*24, byHeader.ExpiresAt.Sub(byHeader.ProcessedAt).Hours(), 1)
	require.InDelta(t, 10*24, byID.ExpiresAt.Sub(byID.ProcessedAt).Hours(), 1)

	c.publish(tallyTopic, "bad", `{"id":"poison"}`)
	require.Equal(t, 2, c.waitDead("bad", "attempts-exhausted").Attempts)
	require.Equal(t, 4, c.waitDead("poison", "attempts-exhausted").Attempts)
	require.EqualValues(t, 2, tries[0].Load())
	require.EqualValues(t, 4, tries[1].Load())
}
