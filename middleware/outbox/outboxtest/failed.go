package outboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/outbox"
)

var failedTests = []test{
	{"WaitsAndComesAgain", failedWaits},
	{"HoldsBackItsOrderingKeyOnly", failedHoldsBack},
	{"UncountedHoldsBackToo", failedUncountedHoldsBack},
	{"WaitingAtTheHeadFillsNoBatch", failedAtTheHead},
	{"UncountedLeavesAttempts", failedUncounted},
	{"AsideLetsSuccessorsPass", failedAside},
	{"ReasonIsCut", failedReason},
	{"UnknownRecord", failedUnknown},
}

func (h Harness) fail(t *testing.T, r fetched, f outbox.Failure) {
	t.Helper()
	f.ID = r.ID
	if f.Reason == "" {
		f.Reason = "some reason"
	}
	require.NoError(t, h.Source.Failed(t.Context(), r.lane, []outbox.Failure{f}))
}

// again waits until the record of key is fetched.
func (h Harness) again(t *testing.T, owned []outbox.Lane, key string) fetched {
	t.Helper()
	var found fetched
	eventually(t, func() error {
		all := fetch(t, h.Source, owned, 100)
		i := slices.IndexFunc(all, func(r fetched) bool { return r.Key == key })
		if i < 0 {
			return fmt.Errorf("%s is not due", key)
		}
		found = all[i]
		return nil
	})
	return found
}

func failedWaits(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	owned := lanes(t, h.Source, "me", long)
	r := find(t, fetch(t, h.Source, owned, 10), "a")
	h.fail(t, r, outbox.Failure{Reason: "first", RetryIn: long})
	require.Empty(t, fetch(t, h.Source, owned, 10))

	h.fail(t, r, outbox.Failure{Reason: "second", RetryIn: 300 * time.Millisecond})
	h.elapse(300 * time.Millisecond)
	got := h.again(t, owned, "a")
	require.Equal(t, 2, got.Attempts)
	require.Equal(t, "second", got.Reason)
	require.False(t, got.Aside)
}

func failedHoldsBack(t *testing.T, h Harness) { holdsBack(t, h, outbox.Failure{}) }

func failedUncountedHoldsBack(t *testing.T, h Harness) {
	holdsBack(t, h, outbox.Failure{Uncounted: true})
}

func holdsBack(t *testing.T, h Harness, f outbox.Failure) {
	f.RetryIn = long
	h.commit(t, ordered("t", "k", 0, 1)...)
	h.commit(t, ordered("other", "k", 1, 1)...) // another topic, the same order
	h.commit(t, ordered("t", "k", 2, 1)...)
	h.commit(t, ordered("t", "j", 0, 2)...)
	h.commit(t, plain("t", "p", 5)...)
	owned := lanes(t, h.Source, "me", long)
	failed := find(t, fetch(t, h.Source, owned, 100), "k-001")
	h.fail(t, failed, f)
	s, err := h.Source.Status(t.Context())
	require.NoError(t, err)
	require.Zero(t, s.Delayed, "it waits for its next attempt, not for its time")

	got := keys(fetch(t, h.Source, owned, 100))
	require.NotContains(t, got, "k-001")
	require.NotContains(t, got, "k-002", "it stands behind one that waits")
	require.Contains(t, got, "k-000", "it stands before")
	require.Subset(t, got, []string{"j-000", "j-001", "p-000", "p-004"})
	require.Len(t, got, 8)

	f.RetryIn = 0
	h.fail(t, failed, f)
	h.again(t, owned, "k-001")
	var ofKey []string
	for _, r := range fetch(t, h.Source, owned, 100) {
		if r.OrderingKey == "k" {
			ofKey = append(ofKey, r.Key)
		}
	}
	require.Equal(t, []string{"k-000", "k-001", "k-002"}, ofKey)
}

// failedAtTheHead: records that wait, and those that they hold back, take no place in a batch.
func failedAtTheHead(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 20)...)
	owned := lanes(t, h.Source, "me", long)
	head := fetch(t, h.Source, owned, 1)[0]
	h.fail(t, head, outbox.Failure{RetryIn: long})

	// Ordering keys until one is in the same lane.
	var mate fetched
	for i := 0; mate.Key == ""; i++ {
		h.commit(t, ordered("t", fmt.Sprint("mate", i), 0, 1)...)
		all, err := h.Source.Fetch(t.Context(), head.lane, 5)
		require.NoError(t, err)
		if len(all) > 0 {
			mate = fetched{all[0], head.lane}
		}
		require.Less(t, i, 500, "no record of the lane comes past those that wait")
	}
	require.NotEqual(t, "k", mate.OrderingKey)
}

func failedUncounted(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	owned := lanes(t, h.Source, "me", long)
	r := find(t, fetch(t, h.Source, owned, 10), "a")
	h.fail(t, r, outbox.Failure{RetryIn: 0})
	for range 3 {
		h.fail(t, r, outbox.Failure{RetryIn: 0, Uncounted: true, Reason: "outage"})
	}
	got := h.again(t, owned, "a")
	require.Equal(t, 1, got.Attempts)
	require.Equal(t, "outage", got.Reason)
}

func failedAside(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 3)...)
	owned := lanes(t, h.Source, "me", long)
	h.fail(t, find(t, fetch(t, h.Source, owned, 10), "k-000"), outbox.Failure{Aside: true, Reason: "payload-too-large"})
	require.Equal(t, []string{"k-001", "k-002"}, keys(fetch(t, h.Source, owned, 10)))
	list, err := h.Source.List(t.Context(), true, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "k-000", list[0].Key)
	require.True(t, list[0].Aside)
	require.Equal(t, "payload-too-large", list[0].Reason)
	require.Equal(t, 1, list[0].Attempts)
}

func failedReason(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	owned := lanes(t, h.Source, "me", long)
	r := find(t, fetch(t, h.Source, owned, 10), "a")
	h.fail(t, r, outbox.Failure{Aside: true, Reason: "x" + strings.Repeat("\u00e4", 4000)})
	list, err := h.Source.List(t.Context(), true, 10)
	require.NoError(t, err)
	require.LessOrEqual(t, len(list[0].Reason), 1024)
	require.Greater(t, len(list[0].Reason), 1000)
	require.True(t, utf8.ValidString(list[0].Reason))
}

func failedUnknown(t *testing.T, h Harness) {
	h.commit(t, record("t", "a"))
	owned := lanes(t, h.Source, "me", long)
	r := find(t, fetch(t, h.Source, owned, 10), "a")
	require.NoError(t, h.Source.Done(t.Context(), r.lane, []int64{r.ID}))
	h.fail(t, r, outbox.Failure{RetryIn: time.Second})
	require.NoError(t, h.Source.Failed(t.Context(), r.lane, nil))
	empty(t, h.Source)
}
