package dynamostore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Scope and key never run into each other.
func TestNames(t *testing.T) {
	t.Parallel()
	one, two := name(keystore.ID{Scope: "a", Key: "b:c"}), name(keystore.ID{Scope: "a:b", Key: "c"})
	require.NotEqual(t, one, two)
}
