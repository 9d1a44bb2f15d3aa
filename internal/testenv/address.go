package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// FreeAddress gives an address of this machine for a server that starts later. Its port is
// below the range that outgoing connections take theirs from, so none of them takes it meanwhile.
func FreeAddress(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))); err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
	}
	require.NoError(t, err, "no free port")
	return ""
}
