package outboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/outbox"
)

var fetchTests = []test{
	{"KeepsEverything", fetchKeepsEverything},
	{"EmptyPayloadAndMetadata", fetchEmptyPayload},
	{"InOrderOfIDs", fetchInOrder},
	{"OneOrderingKeyOneLane", fetchOneLane},
	{"SpreadsOverLanes", fetchSpreads},
	{"HasALimit", fetchLimit},
	{"DoneRemoves", fetchDone},
	{"DeliverAt", fetchDeliverAt},
	{"F057LateCommitIsFound", fetchLateCommit},
	{"F057RollbackStallsNothing", fetchRollback},
	{"CallersTransaction", fetchCallersTransaction},
}

func fetchKeepsEverything(t *testing.T, h Harness) {
	want := outbox.Record{
		Topic: "orders.v1-x_Y", UUID: "0190a8c0-0000-7000-8000-0000000000aa", Key: "Ord-\u00e1 \u2603 'x' \"y\" \\ %_",
		OrderingKey: "account/ \u00c4", Payload: []byte("\x00\xff\xfe{\"a\": 1}\x00"),
		Metadata: map[string]string{"Trace": "a=b, c", "empty": "", "umlaut": "\u00e4\u2028", "\u00fc": "name"},
		Scope:    "svc.payments", ParentKey: "parent-\u00e9",
	}
	before := time.Now()
	h.commit(t, want)
	got := fetch(t, h.Source, lanes(t, h.Source, "a", long), 10)
	require.Len(t, got, 1)
	r := got[0].Record
	require.NotZero(t, r.ID)
	require.WithinDuration(t, before, r.CreatedAt, time.Minute)
	require.Zero(t, r.Attempts)
	require.False(t, r.Aside)
	require.True(t, r.DeliverAt.IsZero())
	r.ID, r.CreatedAt = 0, time.Time{}
	require.Equal(t, want, r)
}

func fetchEmptyPayload(t *testing.T, h Harness) {
	h.commit(t, outbox.Record{Topic: "t", UUID: "u-1"})
	got := fetch(t, h.Source, lanes(t, h.Source, "a", long), 10)
	require.Len(t, got, 1)
	require.Empty(t, got[0].Payload)
	require.Empty(t, got[0].Metadata)
	require.Empty(t, got[0].Key)
	require.Equal(t, "u-1", got[0].UUID)
}

func fetchInOrder(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 5)...)
	for i := 5; i < 10; i++ {
		h.commit(t, ordered("t", "k", i, 1)...)
	}
	h.commit(t, ordered("t", "k", 10, 30)...)
	got := fetch(t, h.Source, lanes(t, h.Source, "a", long), 100)
	require.Len(t, got, 40)
	for i, r := range got {
		require.Equal(t, fmt.Sprintf("k-%03d", i), r.Key)
		if i > 0 {
			require.Greater(t, r.ID, got[i-1].ID)
		}
	}
}

func fetchOneLane(t *testing.T, h Harness) {
	for k := range 10 {
		h.commit(t, ordered("t", fmt.Sprintf("k%d", k), 0, 4)...)
	}
	lane := map[string]int{}
	for _, r := range fetch(t, h.Source, lanes(t, h.Source, "a", long), 100) {
		if was, ok := lane[r.OrderingKey]; ok {
			require.Equal(t, was, r.lane.Number, "ordering key %s", r.OrderingKey)
		}
		lane[r.OrderingKey] = r.lane.Number
	}
	require.Len(t, lane, 10)
}

func fetchSpreads(t *testing.T, h Harness) {
	h.commit(t, plain("t", "p", 200)...)
	used := map[int]int{}
	for _, r := range fetch(t, h.Source, lanes(t, h.Source, "a", long), 200) {
		require.Less(t, r.lane.Number, outbox.Lanes)
		require.GreaterOrEqual(t, r.lane.Number, 0)
		used[r.lane.Number]++
	}
	require.Greater(t, len(used), outbox.Lanes/2, "200 records without order use most lanes")
}

func fetchLimit(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 7)...)
	owned := lanes(t, h.Source, "a", long)
	got := fetch(t, h.Source, owned, 3)
	require.Equal(t, []string{"k-000", "k-001", "k-002"}, keys(got))
	require.Equal(t, keys(got), keys(fetch(t, h.Source, owned, 3)), "what is not marked is fetched again")
}

func fetchDone(t *testing.T, h Harness) {
	h.commit(t, ordered("t", "k", 0, 5)...)
	owned := lanes(t, h.Source, "a", long)
	got := fetch(t, h.Source, owned, 100)
	lane := got[0].lane
	require.NoError(t, h.Source.Done(t.Context(), lane, []int64{got[0].ID, got[2].ID}))
	require.Equal(t, []string{"k-001", "k-003", "k-004"}, keys(fetch(t, h.Source, owned, 100)))
	require.NoError(t, h.Source.Done(t.Context(), lane, []int64{got[0].ID}), "marking twice is no error")
	require.NoError(t, h.Source.Done(t.Context(), lane, nil))
	require.Len(t, fetch(t, h.Source, owned, 100), 3)
}

func fetchDeliverAt(t *testing.T, h Harness) {
	delay := 3 * time.Second
	late, now := ordered("t", "k", 0, 1)[0], ordered("t", "k", 1, 1)[0]
	late.DeliverAt = time.Now().Add(delay)
	past := record("t", "past")
	past.DeliverAt = time.Now().Add(-time.Hour)
	h.commit(t, late, now, past)
	owned := lanes(t, h.Source, "a", long)

	got := keys(fetch(t, h.Source, owned, 100))
	slices.Sort(got)
	require.Equal(t, []string{"k-001", "past"}, got, "a delayed record is not due and holds back nobody")
	s, err := h.Source.Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Delayed)

	if h.Advance != nil {
		h.Advance(delay)
	}
	var found fetched
	eventually(t, func() error {
		for _, r := range fetch(t, h.Source, owned, 100) {
			if r.Key == "k-000" {
				found = r
				return nil
			}
		}
		return fmt.Errorf("not due yet")
	})
	require.WithinDuration(t, late.DeliverAt, found.DeliverAt, time.Millisecond)
	if h.Advance == nil {
		require.False(t, time.Now().Before(late.DeliverAt), "it came too early")
	}
}

func fetchLateCommit(t *testing.T, h Harness) {
	if h.Writers == 1 {
		t.Skip("one writer: ids are given in the order of the commits")
	}
	owned := lanes(t, h.Source, "a", long)
	open, err := h.Begin(t.Context(), ordered("t", "k", 0, 1))
	require.NoError(t, err)
	defer func() { _ = open.Rollback() }()

	h.commit(t, ordered("t", "k", 1, 2)...)
	got := fetch(t, h.Source, owned, 100)
	require.Equal(t, []string{"k-001", "k-002"}, keys(got), "an open transaction stalls nothing")
	require.NoError(t, h.Source.Done(t.Context(), got[0].lane, []int64{got[0].ID, got[1].ID}))
	require.Empty(t, fetch(t, h.Source, owned, 100))

	require.NoError(t, open.Commit())
	require.Equal(t, []string{"k-000"}, keys(fetch(t, h.Source, owned, 100)))
}

func fetchRollback(t *testing.T, h Harness) {
	owned := lanes(t, h.Source, "a", long)
	for i := range 3 {
		tx, err := h.Begin(t.Context(), ordered("t", "k", i, 1))
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
	}
	h.commit(t, ordered("t", "k", 3, 1)...)
	require.Equal(t, []string{"k-003"}, keys(fetch(t, h.Source, owned, 100)))
}

func fetchCallersTransaction(t *testing.T, h Harness) {
	owned := lanes(t, h.Source, "a", long)
	tx, err := h.Begin(t.Context(), ordered("t", "k", 0, 3))
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	require.Empty(t, fetch(t, h.Source, owned, 100), "nothing leaves before the commit")
	require.NoError(t, tx.Commit())
	require.Equal(t, "k-000 k-001 k-002", strings.Join(keys(fetch(t, h.Source, owned, 100)), " "))
}
