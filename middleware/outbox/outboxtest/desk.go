package outboxtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/outbox"
)

var deskTests = []test{
	{"StatusCounts", deskStatus},
	{"ListOldestFirst", deskList},
	{"RetryAside", deskRetry},
	{"DropAside", deskDrop},
}

func deskStatus(t *testing.T, h Harness) {
	s, err := h.Source.Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, s)

	delayed := record("t", "later")
	delayed.DeliverAt = time.Now().Add(time.Hour)
	h.commit(t, append(plain("t", "p", 5), delayed)...)
	owned := lanes(t, h.Source, "me", long)
	all := fetch(t, h.Source, owned, 100)
	h.fail(t, find(t, all, "p-000"), outbox.Failure{Aside: true})
	h.fail(t, find(t, all, "p-001"), outbox.Failure{RetryIn: time.Hour})
	h.elapse(20 * time.Millisecond)

	s, err = h.Source.Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Aside)
	require.EqualValues(t, 1, s.Delayed)
	require.EqualValues(t, 4, s.Pending, "also what waits for its next attempt is pending")
	require.Positive(t, s.OldestAge)
	require.Less(t, s.OldestAge, time.Hour)
}

func deskList(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 5)...)
	owned := lanes(t, h.Source, "me", long)
	all := fetch(t, h.Source, owned, 100)
	for _, key := range []string{"p-003", "p-001"} {
		h.fail(t, find(t, all, key), outbox.Failure{Aside: true})
	}
	aside, err := h.Source.List(t.Context(), true, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"p-001", "p-003"}, recordKeys(aside))

	every, err := h.Source.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Equal(t, []string{"p-000", "p-001", "p-002", "p-003", "p-004"}, recordKeys(every))
	require.Equal(t, []byte("p-000"), every[0].Payload)

	two, err := h.Source.List(t.Context(), false, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"p-000", "p-001"}, recordKeys(two))
}

func recordKeys(records []outbox.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = r.Key
	}
	return out
}

// setAside sets all of n records aside and returns them in the order in which they were written.
func (h Harness) setAside(t *testing.T, n int) (owned []outbox.Lane, records []fetched) {
	t.Helper()
	h.commit(t, plain("t", "p", n)...)
	owned = lanes(t, h.Source, "me", long)
	records = fetch(t, h.Source, owned, 100)
	slices.SortFunc(records, func(a, b fetched) int { return strings.Compare(a.Key, b.Key) })
	for _, r := range records {
		h.fail(t, r, outbox.Failure{Aside: true})
	}
	require.Empty(t, fetch(t, h.Source, owned, 100))
	return owned, records
}

func deskRetry(t *testing.T, h Harness) {
	owned, aside := h.setAside(t, 4)
	h.commit(t, record("t", "healthy"))
	healthy := find(t, fetch(t, h.Source, owned, 10), "healthy")

	n, err := h.Source.Retry(t.Context(), []int64{aside[1].ID, healthy.ID, 1 << 40})
	require.NoError(t, err)
	require.Equal(t, 1, n, "only what is set aside is retried")
	got := find(t, fetch(t, h.Source, owned, 10), aside[1].Key)
	require.Zero(t, got.Attempts, "attempts begin anew")
	require.False(t, got.Aside)

	n, err = h.Source.Retry(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Len(t, fetch(t, h.Source, owned, 10), 5)
	n, err = h.Source.Retry(t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func deskDrop(t *testing.T, h Harness) {
	owned, aside := h.setAside(t, 3)
	h.commit(t, record("t", "healthy"))
	healthy := find(t, fetch(t, h.Source, owned, 10), "healthy")
	n, err := h.Source.Drop(t.Context(), []int64{aside[0].ID, healthy.ID})
	require.NoError(t, err)
	require.Equal(t, 1, n, "only what is set aside is dropped")
	n, err = h.Source.Drop(t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n, "nothing is dropped that was not named")
	every, err := h.Source.List(t.Context(), false, 10)
	require.NoError(t, err)
	require.Equal(t, []string{aside[1].Key, aside[2].Key, "healthy"}, recordKeys(every))
}
