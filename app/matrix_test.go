package app

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// The matrix says what the start-up gate would: it refuses what is not linked in, and what cannot hold for a kind of handler.
func TestMatrix(t *testing.T) {
	t.Parallel()
	set := Set{
		Service: "s",
		Brokers: []broker.Factory{
			{Name: "kafka", Capabilities: broker.Capabilities{Ordering: broker.OrderByKey}}, {Name: "mine", Capabilities: broker.Capabilities{Ordering: broker.OrderNone}},
		},
		Stores: []store.Factory{
			{Name: "sqlite", Capabilities: keystore.Capabilities{Transactional: true, Durable: true}}, {Name: "cache", Capabilities: keystore.Capabilities{Durable: true}},
		},
	}
	all := Matrix(set)
	find := func(brokerName, database, keys, kind string) Combination {
		at := slices.IndexFunc(all, func(c Combination) bool {
			return c.Broker == brokerName && c.Database == database && c.Keys == keys && c.Handler == kind
		})
		require.GreaterOrEqual(t, at, 0, "%s %s %s %s", brokerName, database, keys, kind)
		return all[at]
	}
	require.True(t, find("kafka", "sqlite", "database", "ordered").Offered())
	require.Equal(t, "the effect happens exactly once", find("mine", "sqlite", "database", "transactional").Holds)
	for _, c := range []struct{ broker, database, keys, kind, says string }{
		{"mine", "sqlite", "database", "ordered", "mine as configured does not keep"},
		{"kafka", "cache", "database", "transactional", "cache cannot commit keys with the effect"},
		{"rabbitmq", "sqlite", "database", "external", "broker rabbitmq is not linked into this program"},
		{"kafka", "mysql", "database", "external", "database mysql is not linked into this program"},
		{"kafka", "sqlite", "redis", "external", "keys redis is not linked into this program"},
	} {
		refused := find(c.broker, c.database, c.keys, c.kind)
		require.False(t, refused.Offered())
		require.Empty(t, refused.Holds)
		require.Contains(t, refused.Refused[0], c.says)
	}
	require.True(t, find("kafka", "cache", "database", "external").Offered(), "a lease needs no common transaction")

	var text bytes.Buffer
	require.NoError(t, printMatrix(&text, all))
	require.Regexp(t, `mine +sqlite +database +offered +refused \(\d+\) +offered`, text.String())
	require.Contains(t, text.String(), "broker rabbitmq is not linked into this program")
}

// It needs no server and no configuration.
func TestMatrixCommand(t *testing.T) {
	t.Parallel()
	c := newConsole(t, Builtin(), "BROKER=rabbitmq", "BROKERS__RABBITMQ__URL=amqp://nobody@127.0.0.1:1")
	require.Contains(t, c.ok("guarantees", "--matrix"), "embedded")
	var all []Combination
	require.NoError(t, json.Unmarshal([]byte(c.ok("guarantees", "--matrix", "--json")), &all))
	require.Equal(t, Matrix(Builtin()), all)
}
