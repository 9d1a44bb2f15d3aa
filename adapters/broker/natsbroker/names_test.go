package natsbroker

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAssetNames(t *testing.T) {
	t.Parallel()
	for logical, want := range map[string]string{
		"orders": "orders", "orders.created": "orders_created", "orders_created": "orders=created", "A-1": "A-1",
		"KV.oncemill-leases": "+KV_oncemill-leases", "KV_x": "KV=x", "OBJ.x": "+OBJ_x",
	} {
		require.Equal(t, want, assetName(logical), logical)
	}
}

// Two topics never share a stream, and none takes one of JetStream's own.
func TestAssetNamesDiffer(t *testing.T) {
	t.Parallel()
	names := rapid.StringMatching(`(KV[._]|OBJ[._])?[A-Ka-c0-2._-]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := names.Draw(t, "a"), names.Draw(t, "b")
		require.Equal(t, a == b, assetName(a) == assetName(b))
		require.False(t, strings.HasPrefix(assetName(a), "KV_") || strings.HasPrefix(assetName(a), "OBJ_"))
		require.False(t, strings.ContainsAny(assetName(a), " .*>/\\"))
	})
}

func TestTakesSubject(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.*", "a.b", true}, {"a.>", "a.b.c", true}, {">", "a", true},
		{"a.>", "a", false}, {"a.*", "a.b.c", false}, {"a.b", "a", false}, {"a", "a.b", false}, {"*.b", "a.c", false},
	} {
		require.Equal(t, tt.want, takesSubject([]string{"none", tt.pattern}, tt.subject), "%s on %s", tt.pattern, tt.subject)
	}
}
