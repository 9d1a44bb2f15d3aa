package app

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/internal/testenv"
	"github.com/oncemill/oncemill/middleware/outbox"
)

// announce publishes one message for each effect.
func announce(ctx context.Context, tx handlers.Tx, _ *message.Message) error {
	return tx.Publish(ctx, "tally.added", map[string]string{"key": tx.Key()})
}

func TestOutgoingMessagesAreSeenUntilARelayPublishesThem(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	l.does(announce)
	run := c.start("--no-relay")
	c.publish(tallyTopic, "k", `{}`)
	story := c.waitKey(tallyScope, "k", "completed")
	require.Len(t, story.Outgoing, 1)
	require.Contains(t, c.ok("keys", "show", "k"), "to tally.added")
	require.EqualValues(t, 1, decode[statusView](c, "outbox", "status").Pending)
	require.Contains(t, c.ok("outbox", "status"), "pending    1")
	records := decode[[]recordView](c, "outbox", "list")
	require.Len(t, records, 1)
	require.Equal(t, "k", records[0].ParentKey)
	require.JSONEq(t, `{"key":"k"}`, records[0].Payload)
	require.Contains(t, c.ok("outbox", "list"), "tally.added")
	require.Equal(t, "[]\n", c.ok("outbox", "list", "--aside", "--json"))
	code, _ := run.end()
	require.Equal(t, ExitOK, code)

	c.start()
	testenv.Eventually(t, 20*time.Second, func() error {
		if s := decode[statusView](c, "outbox", "status"); s.Pending > 0 {
			return fmt.Errorf("%d pending", s.Pending)
		}
		return nil
	})
	require.Empty(t, c.waitKey(tallyScope, "k", "completed").Outgoing)
}

func TestRecordsThatWereSetAside(t *testing.T) {
	t.Parallel()
	l := &tally{}
	c := newConsole(t, l.set())
	c.ok("migrate", "up")
	var ids []string
	c.inside(func(ctx context.Context, a *App) { // as the API of a service writes them; no publisher takes such a name
		tx, err := a.store.DB().BeginTxx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		var records []outbox.Record
		for i := range 2 {
			records = append(records, outbox.Record{Topic: "no topic", UUID: fmt.Sprintf("uuid-%d", i), Key: fmt.Sprintf("key-%d", i), Payload: []byte("{}")})
		}
		require.NoError(t, a.store.Publish(ctx, tx, records))
		require.NoError(t, tx.Commit())
	})
	run := c.start()
	testenv.Eventually(t, 20*time.Second, func() error {
		ids = nil
		for _, r := range decode[[]recordView](c, "outbox", "list", "--aside") {
			ids = append(ids, itoa(r.ID))
			require.Contains(t, r.Reason, "topic")
		}
		if len(ids) != 2 {
			return errors.New("not set aside yet")
		}
		return nil
	})
	run.end()
	c.fails(ExitUsage, "outbox", "drop")
	c.fails(ExitUsage, "outbox", "retry", "first")
	c.fails(ExitUsage, "outbox", "list", "--limit", "-1")
	require.Contains(t, c.ok("outbox", "drop", ids[0]), "drop: 1 records")
	require.Contains(t, c.ok("outbox", "drop", ids[0]), "drop: 0 records")
	require.Contains(t, c.ok("outbox", "retry"), "retry: 1 records")
	status := decode[statusView](c, "outbox", "status")
	require.EqualValues(t, 1, status.Pending)
	require.Zero(t, status.Aside)
}
