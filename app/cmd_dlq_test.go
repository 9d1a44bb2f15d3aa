package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
)

// refuseAll makes every message a dead letter.
func refuseAll(context.Context, handlers.Tx, *message.Message) error {
	return handlers.Permanent("not-today", "closed")
}

func accept(context.Context, handlers.Tx, *message.Message) error { return nil }

// bury publishes messages that become dead letters, and returns their ids in the order of the keys.
func (c *console) bury(keys ...string) []string {
	c.t.Helper()
	ids := make([]string, len(keys))
	for _, key := range keys {
		c.publish(tallyTopic, key, `{}`)
	}
	for i, key := range keys {
		ids[i] = itoa(c.waitDead(key, "not-today").ID)
	}
	return ids
}

func TestDeadLetterIsShownAndSentBack(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	l.does(refuseAll)
	run := c.start()
	id := c.bury("order-1")[0]
	c.waitKey(tallyScope, "order-1", "failed")

	require.Contains(t, c.ok("dlq", "list"), "not-today")
	text := c.ok("dlq", "show", id, "--payload")
	require.Contains(t, text, "reason        not-today\n")
	require.Contains(t, text, "header        idempotency-key: order-1\n")
	require.Contains(t, text, "\n{}\n")
	row := decode[rowView](c, "dlq", "show", id)
	require.Equal(t, "{}", row.Payload)
	require.Equal(t, "not-today: closed", row.Error)

	c.publish(tallyTopic, "order-1", `{}`)
	testenv.Eventually(t, 20*time.Second, func() error { return run.counts("oncemill_messages_total", `kind="rejected"`, 1) })
	require.Len(t, decode[[]rowView](c, "dlq", "list"), 1, "a copy of a bad message is no second dead letter")

	l.does(accept) // the cause is mended
	require.Contains(t, c.ok("dlq", "redrive", id, "--by", "ann", "--why", "mended"), "1 sent back")
	c.waitKey(tallyScope, "order-1", "completed")
	require.Equal(t, 1, c.effects("order-1"))
	require.Empty(t, decode[[]rowView](c, "dlq", "list", "--all"))
	c.fails(ExitMissing, "dlq", "show", id)
	c.fails(ExitMissing, "dlq", "redrive", id)
}

func TestMismatchIsRefusedAndRunsUnderAnotherKey(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	c.start()
	c.publish(tallyTopic, "order-1", `{"n":1}`)
	c.waitKey(tallyScope, "order-1", "completed")
	c.publish(tallyTopic, "order-1", `{"n":2}`)
	id := itoa(c.waitDead("order-1", "payload-mismatch").ID)

	require.Contains(t, c.fails(ExitRefused, "dlq", "redrive", id), "nothing was done")
	require.Contains(t, c.fails(ExitUsage, "dlq", "redrive", "--reason", "payload-mismatch", "--as-key", "order-2"), "exactly one id")
	c.fails(ExitUsage, "dlq", "redrive", id, "--as-key", "order\n2")
	require.Equal(t, 1, c.effects(""))

	c.ok("dlq", "redrive", id, "--as-key", "order-2")
	c.waitKey(tallyScope, "order-2", "completed")
	require.Equal(t, 2, c.effects(""))
	require.Equal(t, 1, c.effects("order-1"))
}

func TestDropAndSelection(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	l.does(refuseAll)
	c.start()
	ids := c.bury("a", "b", "c")

	for _, args := range [][]string{{"dlq", "redrive"}, {"dlq", "drop"}} {
		require.Contains(t, c.fails(ExitRefused, args...), "--dry-run", "everything is never meant")
		c.fails(ExitUsage, append(args, "x17")...)
		c.fails(ExitUsage, append(args, "--since", "yesterday")...)
		c.fails(ExitUsage, append(args, "--handler", "tally", "--limit", "0")...)
		require.Contains(t, c.fails(ExitUsage, append(args, "--handler", "tly")...), "no binding")
		c.fails(ExitMissing, append(args, "4711")...)
		require.Contains(t, c.ok(append(args, "--handler", "tally", "--since", "1d", "--dry-run")...), "3 dead letters would be")
		require.Contains(t, c.ok(append(args, "--reason", "other", "--dry-run")...), "0 dead letters would be")
		require.Contains(t, c.ok(append(args, "--handler", "old/removed", "--dry-run")...), "0 dead letters would be")
	}
	require.Len(t, decode[[]rowView](c, "dlq", "list", "--limit", "2"), 2)
	require.Len(t, decode[[]rowView](c, "dlq", "list"), 3, "nothing was done by all this")

	require.Contains(t, c.ok("dlq", "drop", ids[0], ids[0], "--why", "a test"), "1 dropped")
	require.Contains(t, c.ok("dlq", "drop", "--key", "b"), "1 dropped")
	left := decode[[]rowView](c, "dlq", "list")
	require.Len(t, left, 1)
	require.Equal(t, "c", left[0].Key)
	require.Zero(t, c.effects(""))
}

// A redrive that is interrupted has sent back what it says, and the next one goes on with the rest.
func TestRedriveIsInterruptedAndContinued(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	l.does(refuseAll)
	c.start()
	keys := make([]string, 12)
	for i := range keys {
		keys[i] = fmt.Sprintf("k-%02d", i)
	}
	c.bury(keys...)
	l.does(accept)

	began := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan answer)
	go func() { done <- c.doIn(ctx, "dlq", "redrive", "--handler", "tally", "--rate", "10") }()
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := c.effects(""); n < 3 {
			return fmt.Errorf("%d effects", n)
		}
		return nil
	})
	require.Greater(t, time.Since(began), 200*time.Millisecond, "three at ten a second")
	cancel()
	a := <-done
	require.Equal(t, ExitFailed, a.code)
	var sent int
	_, err := fmt.Sscanf(a.out, "%d sent back", &sent)
	require.NoError(t, err, a.out)
	require.Contains(t, a.errs, fmt.Sprintf("%d left", len(keys)-sent))
	require.GreaterOrEqual(t, sent, 3)
	require.Less(t, sent, len(keys))

	require.Contains(t, c.ok("dlq", "redrive", "--handler", "tally", "--limit", "2"), "2 sent back")
	require.Contains(t, c.ok("dlq", "redrive", "--handler", "tally"), fmt.Sprintf("%d sent back", len(keys)-sent-2))
	for _, key := range keys {
		c.waitKey(tallyScope, key, "completed")
		require.Equal(t, 1, c.effects(key))
	}
}

// A message that fails for a while waits in parking, and its story tells why.
func TestWaitingMessageIsShown(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BINDINGS__TALLY__RETRY__IN_PROCESS=0s", "BINDINGS__TALLY__RETRY__FIRST=300ms")
	failed := make(chan struct{})
	l.does(func(context.Context, handlers.Tx, *message.Message) error {
		select {
		case <-failed:
			return nil
		default:
			return errors.New("the printer is on fire")
		}
	})
	c.start()
	c.publish(tallyTopic, "k", `{}`)
	var story storyView
	testenv.Eventually(t, 20*time.Second, func() error {
		story = c.waitKey(tallyScope, "k", "absent")
		if len(story.Parked) != 1 {
			return errors.New("it is not parked yet")
		}
		return nil
	})
	require.Equal(t, "waiting", story.Parked[0].State)
	require.Contains(t, story.LastError, "printer")
	require.Contains(t, c.ok("keys", "show", "k"), "absent (not processed yet, or rolled back)")
	require.Contains(t, c.ok("dlq", "list", "--all"), "waiting")
	require.Empty(t, decode[[]rowView](c, "dlq", "list"))
	id := itoa(story.Parked[0].ID)
	require.Contains(t, c.fails(ExitRefused, "dlq", "redrive", id), "waiting")
	close(failed)
	c.waitKey(tallyScope, "k", "completed")
	require.Equal(t, 1, c.effects("k"))
}

// F013: whatever stands in a foreign message, the terminal gets no control characters.
func TestF013NothingRawReachesTheTerminal(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set(), "BINDINGS__TALLY__KEY=json:/key")
	c.start()
	bad := []string{"a\nb", "a\x1b[31mb", "a\x7fb", "a\u009b31mb", "a\u202eb"}
	for _, key := range bad {
		body, err := json.Marshal(map[string]string{"key": key})
		require.NoError(t, err)
		c.ok("publish", tallyTopic, "--data", string(body), "--header", "note=\x1b[2J")
	}
	var rows []rowView
	testenv.Eventually(t, 20*time.Second, func() error {
		rows = decode[[]rowView](c, "dlq", "list")
		if keys := decode[[]keyView](c, "keys", "list"); len(rows)+len(keys) < len(bad) {
			return fmt.Errorf("%d dead letters, %d keys", len(rows), len(keys))
		}
		return nil
	})
	require.NotEmpty(t, rows)
	outputs := []string{c.ok("dlq", "list"), c.ok("dlq", "list", "--json"), c.ok("keys", "list"), c.ok("keys", "list", "--json")}
	for _, row := range rows {
		id := itoa(row.ID)
		outputs = append(outputs, c.ok("dlq", "show", id, "--payload"), c.ok("dlq", "show", id, "--json"))
	}
	for _, key := range bad {
		for _, args := range [][]string{{"keys", "show", key}, {"keys", "show", key, "--json"}, {"publish", tallyTopic, "--key", key, "--data", "{}"}, {"keys", key}} {
			a := c.do(args...)
			outputs = append(outputs, a.out, a.errs)
		}
	}
	outputs = append(outputs, c.fails(ExitUsage, "keys", "list", "--config", "no\x1b[31mfile.yaml"))
	for _, out := range outputs {
		for _, r := range out {
			require.False(t, r != '\n' && (r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e), "%q", out)
		}
	}
	require.Contains(t, strings.Join(outputs, ""), `a\u001b[31mb`, "it is escaped, not dropped")
}
