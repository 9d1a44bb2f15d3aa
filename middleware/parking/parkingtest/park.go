package parkingtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/parking"
)

var parkTests = []test{
	{"KeepsEveryByte", parkKeeps},
	{"EmptyFields", parkEmpty},
	{"ErrorIsCut", parkErrorCut},
	{"WaitingOnceForAKey", parkWaitingOnce},
	{"DeadOnceForAReason", parkDeadOnce},
	{"KeylessByUUID", parkKeyless},
	{"KeysAreByteExact", parkByteExact},
	{"AllOrNothing", parkAllOrNothing},
	{"ParkedAgainKeepsItsPlace", parkKeepsPlace},
}

func parkKeeps(t *testing.T, h Harness) {
	want := parking.Row{
		State: parking.Dead, Scope: scope, Topic: "orders.v1", UUID: "0190a8c0-0000-7000-8000-0000000000aa",
		Key: "bad\x00key\xff\xfe \u00e4", OrderingKey: "o/\u00c4\x01", Fingerprint: printA,
		Payload:  []byte("\x00\x01\xff{\"a\":\"\u2028\"}\n"),
		Metadata: map[string]string{"nul": "a\x00b", "raw": "\xff\xfe", "": "no name", "umlaut-\u00fc": "\u00e4", "empty": ""},
		Reason:   "key-control-character", Class: "permanent", Error: "text \x00 with \xff bytes",
		Attempts: 3, Holds: true,
	}
	before := time.Now()
	park(t, h.Store, want)
	rows := list(t, h.Reopen(t), parking.Filter{})
	require.Len(t, rows, 1)
	got := rows[0]
	byID, err := h.Store.Get(t.Context(), got.ID)
	require.NoError(t, err)
	require.Equal(t, got, byID)
	require.NotZero(t, got.ID)
	require.WithinDuration(t, before, got.FirstAt, time.Minute)
	require.WithinDuration(t, before, got.LastAt, time.Minute)
	require.Empty(t, got.History)
	got.ID, got.FirstAt, got.LastAt, got.DueAt, got.History = 0, time.Time{}, time.Time{}, time.Time{}, nil
	require.Equal(t, want, got)
}

func parkEmpty(t *testing.T, h Harness) {
	park(t, h.Store, parking.Row{State: parking.Waiting, Scope: scope, Topic: "t", UUID: "u", Reason: "r", Class: "c"})
	got := lease(t, h.Store, 1, long)
	require.Len(t, got, 1)
	require.Empty(t, got[0].Payload)
	require.Empty(t, got[0].Metadata)
	require.Empty(t, got[0].Key)
	require.Empty(t, got[0].Error)
}

func parkErrorCut(t *testing.T, h Harness) {
	r := row("a")
	r.Error = strings.Repeat("\u00e4", 5000)
	park(t, h.Store, r)
	got := only(t, h.Store, "a").Error
	require.LessOrEqual(t, len(got), 2<<10)
	require.True(t, strings.HasPrefix(got, strings.Repeat("\u00e4", 1000)))
}

func parkWaitingOnce(t *testing.T, h Harness) {
	first := row("a")
	first.DueIn = time.Hour
	park(t, h.Store, first)
	was := only(t, h.Store, "a")

	again := row("a")
	again.Attempts, again.Error, again.DueIn = 7, "other text", 0
	h.elapse(5 * time.Millisecond)
	park(t, h.Store, again)
	got := only(t, h.Store, "a")
	require.Equal(t, was.ID, got.ID)
	require.Equal(t, was.UUID, got.UUID)
	require.Equal(t, 7, got.Attempts)
	require.Equal(t, "other text", got.Error)
	require.True(t, got.DueAt.Equal(was.DueAt), "the later due time is kept")
	require.True(t, got.FirstAt.Equal(was.FirstAt))
	require.True(t, got.LastAt.After(was.LastAt))

	later := row("a")
	later.DueIn = 2 * time.Hour
	park(t, h.Store, later)
	require.True(t, only(t, h.Store, "a").DueAt.After(was.DueAt))

	other := row("a")
	other.Fingerprint = printB
	elsewhere := row("a")
	elsewhere.Scope = "svc.other"
	park(t, h.Store, other, elsewhere)
	require.Len(t, list(t, h.Store, parking.Filter{Key: "a"}), 3, "another payload or scope is another row")
}

func parkDeadOnce(t *testing.T, h Harness) {
	for i := range 3 {
		r := dead("a", "payload-mismatch")
		r.Attempts = i
		park(t, h.Store, r)
	}
	require.Equal(t, 2, only(t, h.Store, "a").Attempts)
	other, elsewhere := dead("a", "panic"), dead("a", "payload-mismatch")
	elsewhere.Scope = "svc.other"
	print := dead("a", "payload-mismatch")
	print.Fingerprint = printB
	park(t, h.Store, other, elsewhere, print)
	require.Len(t, list(t, h.Store, parking.Filter{Key: "a"}), 4)
	park(t, h.Store, row("a"))
	require.Len(t, list(t, h.Store, parking.Filter{Key: "a"}), 5, "a waiting row beside dead ones")
}

func parkKeyless(t *testing.T, h Harness) {
	one, two := dead("", "key-missing"), dead("", "key-missing")
	park(t, h.Store, one, two, one)
	rows := list(t, h.Store, parking.Filter{Reason: "key-missing"})
	require.Len(t, rows, 2, "two messages without key are two dead letters, one delivered twice is one")
}

func parkByteExact(t *testing.T, h Harness) {
	all := []string{"ord-A1", "ord-a1", "ord-\u00e11", "ord-a\u03011", "ord-a1 ", "ord-\uff411", "\x00", "\x00\x00", "\xff"}
	for _, key := range all {
		park(t, h.Store, dead(key, "r"))
		park(t, h.Store, dead(key, "r"))
	}
	require.ElementsMatch(t, all, keys(list(t, h.Store, parking.Filter{})))
	require.Equal(t, "ord-a1 ", only(t, h.Store, "ord-a1 ").Key)
	for _, key := range all {
		park(t, h.Store, ordered(key+"x", key))
	}
	require.Len(t, lease(t, h.Store, 100, long), len(all), "ordering keys are byte-exact too")
}

func parkAllOrNothing(t *testing.T, h Harness) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, h.Store.Park(ctx, []parking.Row{row("a"), row("b")}))
	require.Empty(t, list(t, h.Store, parking.Filter{}))
	require.NoError(t, h.Store.Park(t.Context(), nil))
}

func parkKeepsPlace(t *testing.T, h Harness) {
	park(t, h.Store, ordered("a", "o"), ordered("b", "o"), ordered("c", "o"))
	park(t, h.Store, ordered("a", "o"))
	require.Equal(t, []string{"a", "b", "c"}, keys(list(t, h.Store, parking.Filter{})))
	require.Equal(t, []string{"a"}, leasedKeys(lease(t, h.Store, 10, long)))
}
