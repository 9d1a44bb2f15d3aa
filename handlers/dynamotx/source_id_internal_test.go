package dynamotx

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// An id leads to its record's items, and sorts as its record is due: those of a lane in the order of their numbers, and what is delayed behind what
// every query up to then reads.
func TestIDs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lane, parts := rapid.IntRange(0, outbox.Lanes-1).Draw(t, "lane"), rapid.IntRange(0, maxParts).Draw(t, "parts")
		n := rapid.Int64Range(1, 1<<52).Draw(t, "number")
		at := time.Unix(rapid.Int64Range(1, 1<<secondBits-4).Draw(t, "second"), rapid.Int64Range(0, 999_999_999).Draw(t, "fraction"))
		now, next, late := newID(lane, n, time.Time{}, parts), newID(lane, n+1, time.Time{}, 0), newID(lane, n, at, parts)
		for _, id := range []int64{now, late} {
			require.Positive(t, id)
			require.Equal(t, lane, laneOf(id))
			require.Equal(t, parts, partsOf(id))
			require.Len(t, sortID(id), 19)
		}
		require.Less(t, sortID(now), sortID(next))
		require.Less(t, sortID(next), sortID(late))
		require.LessOrEqual(t, late, dueBy(at), "it is read when it is due")
		require.Greater(t, late, dueBy(at.Add(-time.Second)), "and not a second before")
		require.Less(t, next, dueBy(time.Unix(0, 0)))
	})
	require.Positive(t, newID(15, 1<<52, time.Unix(1<<62, 0), maxParts), "the end of time")
	require.Positive(t, dueBy(time.Unix(1<<62, 0)))
}
