package idempotency

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Successors of what was handed back wait for it for a while; then it has gone to another replica, and nothing of it is kept.
func TestLanesPatienceEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLanes()
		const keys = 20
		for i := range keys {
			l.end(l.take(fmt.Sprint(i), "first"), true)
		}
		early := l.take("0", "second")
		require.True(t, early.unrun, "the first may yet return")
		l.end(early, true)
		require.Len(t, l.keys, keys)

		time.Sleep(returnPatience + time.Second) // of the bubble's clock
		late := l.take("0", "second")
		require.False(t, late.unrun)
		l.end(late, false)
		l.end(l.take("another", "first"), true)
		require.Len(t, l.keys, 1, "keys that nobody asks for any more are forgotten")
	})
}
