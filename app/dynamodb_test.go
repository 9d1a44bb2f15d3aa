package app

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/internal/testenv"
)

// The built-in plugins in DynamoDB take the work of those in SQL over, where they are enabled.
func TestPluginsInDynamoDB(t *testing.T) {
	t.Parallel()
	require.NotContains(t, newConsole(t, Builtin()).ok("guarantees"), "dynamodb", "they have to be enabled")

	prefix, env := testenv.Name(t, "d")+"-", []string{"PLUGINS__PAYMENTS__ENABLED=false", "PLUGINS__COUNTERS__ENABLED=false"}
	for _, plugin := range []string{"PAYMENTS", "COUNTERS"} {
		section := "PLUGINS__" + plugin + "_DYNAMODB__"
		env = append(env, section+"ENABLED=true", section+"CONFIG__DYNAMODB__ENDPOINT="+testenv.DynamoDB(t).Endpoint,
			section+"CONFIG__DYNAMODB__REGION=eu-central-1", section+"CONFIG__DYNAMODB__CREATE=true", section+"CONFIG__DYNAMODB__PREFIX="+prefix+plugin+"-")
	}
	c := newConsole(t, Builtin(), env...)
	text := c.ok("guarantees")
	require.Contains(t, text, "payments-dynamodb (external, topic payments.requested): the effect happens exactly once")
	require.Contains(t, text, "more than 30d after its first attempt: it is parked in doubt")
	require.Contains(t, c.with("PLUGINS__PAYMENTS__ENABLED=true").fails(ExitUsage, "config", "check"), "set plugins.payments.enabled to false")
	require.Contains(t, c.with("PLUGINS__PAYMENTS_DYNAMODB__CONFIG__DYNAMODB__PREFIX=a b").fails(ExitUsage, "guarantees"), "prefix")

	require.Contains(t, c.with("BINDINGS__PAYMENTS_DYNAMODB__ON_DUPLICATE=resend").fails(ExitUsage, "config", "check"), "on_duplicate")

	run := c.start("--no-relay")
	c.publish("accounts.opened", "alice", `{"account_id":"alice","currency":"EUR","opening_balance":"100.00"}`)
	c.publish("accounts.opened", "bob", `{"account_id":"bob","currency":"EUR"}`)
	c.waitKey("oncemill/payments-dynamodb-accounts", "alice", "completed")
	c.waitKey("oncemill/payments-dynamodb-accounts", "bob", "completed")
	for range 2 {
		c.publish("payments.requested", "order-1", `{"payment_id":"p1","from":"alice","to":"bob","amount":"12.50","currency":"EUR"}`)
	}
	paid := c.waitKey("oncemill/payments-dynamodb", "order-1", "completed")
	require.JSONEq(t, `{"payment_id":"p1","status":"completed","from":"alice","to":"bob","amount":"12.50","currency":"EUR"}`, string(paid.Result))

	testenv.Eventually(t, 30*time.Second, func() error {
		return run.counts("oncemill_messages_total", `kind="duplicate",scope="oncemill/payments-dynamodb"`, 1)
	})
	c.outgoingInDynamoDB(paid.Outgoing)
	code, _ := run.end()
	require.Equal(t, ExitOK, code)

	// A relay publishes it from there, and the other plugin counts it.
	c.start()
	testenv.Eventually(t, 30*time.Second, func() error {
		var counted []keyView
		if err := json.Unmarshal([]byte(c.ok("keys", "list", "--scope", "oncemill/counters-dynamodb", "--state", "completed", "--json")), &counted); err != nil {
			return err
		}
		if len(counted) != 1 {
			return fmt.Errorf("%d payments are counted", len(counted))
		}
		return nil
	})
	require.Empty(t, c.waitKey("oncemill/payments-dynamodb", "order-1", "completed").Outgoing)
	require.Zero(t, decode[statusView](c, "outbox", "status").Pending)
}

// outgoingInDynamoDB checks that the commands show the one confirmation that no relay has published.
func (c *console) outgoingInDynamoDB(known []recordView) {
	c.t.Helper()
	const here = "payments-dynamodb"
	require.Len(c.t, known, 1)
	require.Equal(c.t, here, known[0].Outbox)
	require.Contains(c.t, c.ok("keys", "show", "order-1"), "of outbox payments-dynamodb to payments.completed")
	status := decode[statusView](c, "outbox", "status")
	require.EqualValues(c.t, 1, status.Pending)
	require.Len(c.t, status.Outboxes, 3, "that of the database, and those of two plugins")
	require.Contains(c.t, c.ok("outbox", "status"), "outbox     payments-dynamodb\npending    1")
	require.NotContains(c.t, c.ok("outbox", "status", "--outbox", "database"), "pending    1")
	listed := decode[[]recordView](c, "outbox", "list")
	require.Equal(c.t, known, listed)
	require.Contains(c.t, c.fails(ExitUsage, "outbox", "drop", itoa(listed[0].ID)), "--outbox")
	require.Contains(c.t, c.fails(ExitUsage, "outbox", "list", "--outbox", "kitchen"), "payments-dynamodb")
	require.Contains(c.t, c.ok("outbox", "drop", "--outbox", here, itoa(listed[0].ID)), "drop: 0 records", "it is not set aside")
}
