package envelope_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/middleware/envelope"
)

// TestDerivedIdentitiesNeverChange holds golden values. They stand in databases and brokers of users: a
// changed one makes every message in flight a new message, so the values are not to be "updated".
func TestDerivedIdentitiesNeverChange(t *testing.T) {
	t.Parallel()
	require.Equal(t, "2aa68480-e898-8fa8-a75f-c75f22fe6d38", envelope.DeriveUUID("oncemill/payments", "pay-1", 0))
	require.Equal(t, "650e42c2-2fc6-8ce2-8ebc-b33c542b30cb", envelope.DeriveUUID("oncemill/payments", "pay-1", 1))
	require.Equal(t, "01890a5d-ac96-836f-96b6-4bcfd42515b1", envelope.DeriveUUID("oncemill/payments", "01890a5d-ac96-774b-bcce-b302099a8057", 0))
	require.Equal(t, "01893e5b-2c96-8acd-9305-3f1c6939e7d9", envelope.DeriveUUID("oncemill/payments", "01H4Z5PB4P000000000123456R", 0))
	require.Equal(t, "2f592c74-845f-8479-871e-485ad9e52235", envelope.Downstream("oncemill/email", "pay-1"))
	require.Equal(t, "e018f19a-8004-8427-b331-b4e168f47408", envelope.Downstream("oncemill/email", "pay-1", "capture"))
	require.Equal(t, "524bbe6a-d8d9-824d-9a63-2137b7ead761", envelope.DeliveryUUID("kafka", "orders/0/17"))
}

func TestDeriveUUID(t *testing.T) {
	t.Parallel()
	v7 := "01890a5d-ac96-774b-bcce-b302099a8057"
	child := envelope.DeriveUUID("s", v7, 0)
	grandchild := envelope.DeriveUUID("s2", child, 3)
	require.Equal(t, v7[:13], child[:13], "the parent's time leads")
	require.Equal(t, v7[:13], grandchild[:13], "over several hops")
	require.NotEqual(t, child, grandchild)
	require.Equal(t, child, envelope.DeriveKey("s", v7, 0))

	ulid := envelope.DeriveUUID("s", "01H455VB4P00000000000000RS", 0)
	require.Equal(t, "01890a5d-ac96", ulid[:13])
	require.NotEqual(t, "f81d4fae-7dec", envelope.DeriveUUID("s", "f81d4fae-7dec-41d0-a765-00a0c91e6bf6", 0)[:13], "version 4 has no time")
}

func TestDerivedIdentitiesDiffer(t *testing.T) {
	t.Parallel()
	ids := []string{
		envelope.DeriveUUID("ab", "c", 0), envelope.DeriveUUID("a", "bc", 0), envelope.DeriveUUID("a", "bc", 1), envelope.DeriveUUID("", "abc", 0),
		envelope.Downstream("ab", "c"), envelope.Downstream("a", "bc"), envelope.Downstream("ab", "c", ""), envelope.Downstream("ab", "c", "d", "e"),
		envelope.Downstream("ab", "c", "de"), envelope.DeliveryUUID("ab", "c"), envelope.DeliveryUUID("a", "bc"),
	}
	slices.Sort(ids)
	require.Len(t, slices.Compact(slices.Clone(ids)), len(ids))
}

func TestDerivedIdentitiesAreValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		scope, key := rapid.String().Draw(t, "scope"), rapid.String().Draw(t, "key")
		ordinal := rapid.IntRange(0, 1<<20).Draw(t, "ordinal")
		for _, text := range []string{envelope.DeriveUUID(scope, key, ordinal), envelope.Downstream(scope, key), envelope.DeliveryUUID(scope, key)} {
			id, err := uuid.Parse(text)
			require.NoError(t, err)
			require.Equal(t, uuid.Version(8), id.Version())
			require.Equal(t, uuid.RFC4122, id.Variant())
			require.NoError(t, envelope.ValidateKey(text))
			require.LessOrEqual(t, len(text), envelope.MaxUUID)
		}
		require.Equal(t, envelope.DeriveUUID(scope, key, ordinal), envelope.DeriveUUID(scope, key, ordinal))
	})
}

func TestReceivedUUID(t *testing.T) {
	t.Parallel()
	d := envelope.Delivery{Broker: "kafka", Position: "orders/0/17", MessageID: "m-1"}
	require.Equal(t, "own", envelope.ReceivedUUID("own", d))
	require.Equal(t, envelope.DeliveryUUID("kafka", "orders/0/17"), envelope.ReceivedUUID("", d))
	long := "a-message-id-of-another-library-that-is-too-long"
	require.Len(t, envelope.ReceivedUUID(long, d), 36)
	require.Equal(t, envelope.ReceivedUUID(long, d), envelope.ReceivedUUID(long, envelope.Delivery{}), "the same wherever it is delivered")
	require.Equal(t, envelope.ReceivedUUID("", envelope.Delivery{MessageID: "m-1"}), envelope.ReceivedUUID("", envelope.Delivery{MessageID: "m-1", Session: "2"}))
	require.NotEqual(t, envelope.ReceivedUUID("", envelope.Delivery{}), envelope.ReceivedUUID("", envelope.Delivery{}), "two messages without any identity are two")
}
