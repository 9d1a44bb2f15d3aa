package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTroubleThatGoesOnIsToldOnceInAWhile(t *testing.T) {
	t.Parallel()
	var q quiet
	now := time.Now()
	told, cases := 0, 0
	for range 3600 { // an hour, one failed batch of five each second
		if say, n := q.tell("unroutable", 5, now); say {
			told, cases = told+1, cases+n
		}
		now = now.Add(time.Second)
	}
	require.Equal(t, 120, told)
	require.Equal(t, 5*3600-29*5, cases, "every case up to the last time is in some line")

	say, n := q.tell("refused", 1, now)
	require.True(t, say, "another trouble is told at once")
	require.Equal(t, 1, n)
}
