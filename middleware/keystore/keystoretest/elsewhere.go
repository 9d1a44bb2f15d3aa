package keystoretest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// ElsewhereHarness is a store of keys elsewhere under test: empty, and nobody else's.
type ElsewhereHarness struct {
	Store keystore.Elsewhere
	// Reopen and Advance are as LeasingHarness's.
	Reopen  func(t *testing.T) keystore.Elsewhere
	Advance func(d time.Duration)
}

var elsewhereTests = []struct {
	name string
	run  func(t *testing.T, h ElsewhereHarness)
}{
	{"PeekShowsAKeyAsItStands", elsewherePeek},
	{"NoteIsSeenByEveryone", elsewhereNote},
	{"NoteLeavesAKeyInProgress", elsewhereNoteInProgress},
	{"NoteReplacesAnotherEpoch", elsewhereNoteEpoch},
	{"AnotherEpochIsAbsent", elsewhereEpoch},
	{"CompletedForItsRetention", elsewhereRetention},
	{"ResultTooLarge", elsewhereTooLarge},
	{"BusyNamesItsHolder", elsewhereBusy},
}

// RunElsewhere runs the whole suite of a store elsewhere: its leases and its hints. newHarness is called once for each test.
func RunElsewhere(t *testing.T, newHarness func(t *testing.T) ElsewhereHarness) {
	t.Helper()
	t.Run("Leasing", func(t *testing.T) {
		t.Parallel()
		RunLeasing(t, func(t *testing.T) LeasingHarness {
			h := newHarness(t)
			return LeasingHarness{
				Store: h.Store, Classify: h.Store.Classify, Advance: h.Advance,
				Reopen: func(t *testing.T) keystore.Leasing { return h.Reopen(t) },
			}
		})
	})
	t.Run("Elsewhere", func(t *testing.T) {
		t.Parallel()
		for _, c := range elsewhereTests {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, newHarness(t))
			})
		}
	})
}

// in is the claim of a key in an epoch.
func in(epoch, key string) keystore.Claim {
	c := claim(key)
	c.Epoch = epoch
	return c
}

func peek(t *testing.T, s keystore.Elsewhere, key string) keystore.Record {
	t.Helper()
	records, err := s.Peek(t.Context(), []keystore.ID{{Scope: scope, Key: "never seen"}, {Scope: scope, Key: key}})
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.Equal(t, keystore.Record{ID: keystore.ID{Scope: scope, Key: "never seen"}}, records[0])
	return records[1]
}

func note(t *testing.T, s keystore.Elsewhere, done ...keystore.Completion) {
	t.Helper()
	require.NoError(t, s.Note(t.Context(), done))
}

func elsewherePeek(t *testing.T, h ElsewhereHarness) {
	v := acquire(t, h.Store, "one", in("e1", "a"), long)
	r := peek(t, h.Store, "a")
	require.Equal(t, keystore.InProgress, r.State)
	require.Equal(t, "one", r.Owner)
	require.Equal(t, printA, r.Fingerprint)
	require.Greater(t, r.LeaseLeft, long/2)
	require.WithinDuration(t, time.Now(), r.FirstAt, time.Minute)

	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(in("e1", "a"), v), `{"b": 1,  "a": "\u00e9"}`)}))
	r = peek(t, h.Reopen(t), "a")
	require.Equal(t, keystore.Completed, r.State)
	require.Equal(t, "e1", r.Epoch)
	require.Equal(t, printA, r.Fingerprint)
	require.Equal(t, "tester", r.Owner)
	require.Equal(t, `{"b": 1,  "a": "\u00e9"}`, string(r.Result), "the result is kept byte for byte")
	require.WithinDuration(t, time.Now(), r.ProcessedAt, time.Minute)
	require.WithinDuration(t, r.ProcessedAt.Add(retention), r.ExpiresAt, 10*time.Second)
}

func elsewhereNote(t *testing.T, h ElsewhereHarness) {
	note(t, h.Store, completed(in("e1", "a"), `"r"`), completed(in("e1", "b"), ""))
	r := peek(t, h.Reopen(t), "a")
	require.Equal(t, keystore.Completed, r.State)
	require.Equal(t, "e1", r.Epoch)
	require.Equal(t, `"r"`, string(r.Result))
	require.Equal(t, printA, r.Fingerprint)
	require.Nil(t, peek(t, h.Store, "b").Result)

	note(t, h.Store, completed(in("e1", "a"), `"again"`))
	require.Equal(t, `"r"`, string(peek(t, h.Store, "a").Result), "what is noted in the same epoch stays")
	require.Equal(t, keystore.Duplicate, acquire(t, h.Store, "one", in("e1", "a"), long).Outcome)
}

func elsewhereNoteInProgress(t *testing.T, h ElsewhereHarness) {
	v := acquire(t, h.Store, "one", in("e1", "a"), short)
	note(t, h.Store, completed(in("e1", "a"), `"noted"`))
	require.Equal(t, keystore.InProgress, peek(t, h.Store, "a").State)
	require.NoError(t, h.Store.Renew(t.Context(), v.Record.ID, v.Token, time.Millisecond))
	Harness{Advance: h.Advance}.elapse(20 * time.Millisecond)
	note(t, h.Store, completed(in("e1", "a"), `"noted"`))
	require.Equal(t, keystore.TakenOver, acquire(t, h.Store, "two", in("e1", "a"), long).Outcome,
		"a lease that is over still says that a call may have been made")
}

func elsewhereNoteEpoch(t *testing.T, h ElsewhereHarness) {
	note(t, h.Store, completed(in("e1", "a"), `"old"`))
	other := completed(in("e2", "a"), `"new"`)
	other.Claim.Fingerprint = printB
	note(t, h.Store, other)
	r := peek(t, h.Store, "a")
	require.Equal(t, "e2", r.Epoch)
	require.Equal(t, printB, r.Fingerprint)
	require.Equal(t, `"new"`, string(r.Result))
}

func elsewhereEpoch(t *testing.T, h ElsewhereHarness) {
	v := acquire(t, h.Store, "one", in("e1", "a"), long)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", in("e2", "a"), long).Outcome, "a lease belongs to no epoch")
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(in("e1", "a"), v), `"old"`)}))

	next := acquire(t, h.Store, "two", in("e2", "a"), long)
	require.Equal(t, keystore.Fresh, next.Outcome)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "three", in("e1", "a"), long).Outcome)
	require.NoError(t, h.Store.Release(t.Context(), next.Record.ID, next.Token))
	require.Equal(t, keystore.Absent, peek(t, h.Store, "a").State, "what another epoch knew is gone")
}

func elsewhereRetention(t *testing.T, h ElsewhereHarness) {
	v := acquire(t, h.Store, "one", in("e1", "leased"), time.Millisecond)
	leased, noted := completed(held(in("e1", "leased"), v), ""), completed(in("e1", "noted"), "")
	leased.Retention, noted.Retention = short, short
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{leased}))
	note(t, h.Store, noted)
	open := acquire(t, h.Store, "one", in("e1", "open"), time.Millisecond)
	require.NotEmpty(t, open.Token)
	Harness{Advance: h.Advance}.elapse(2 * short)
	eventually(t, func() error {
		for _, key := range []string{"leased", "noted"} {
			if r := peek(t, h.Store, key); r.State != keystore.Absent {
				return fmt.Errorf("%s is %s", key, r.State)
			}
		}
		return nil
	})
	require.Equal(t, keystore.Fresh, acquire(t, h.Store, "two", in("e1", "leased"), long).Outcome)
	require.Equal(t, keystore.TakenOver, acquire(t, h.Store, "two", in("e1", "open"), long).Outcome, "a key in progress does not go")
}

func elsewhereTooLarge(t *testing.T, h ElsewhereHarness) {
	v := acquire(t, h.Store, "one", in("e1", "a"), long)
	large := completed(held(in("e1", "a"), v), fmt.Sprintf("%q", make([]byte, keystore.MaxResult)))
	require.ErrorIs(t, h.Store.Complete(t.Context(), []keystore.Completion{large}), keystore.ErrResultTooLarge)
	require.ErrorIs(t, h.Store.Note(t.Context(), []keystore.Completion{large}), keystore.ErrResultTooLarge)
	require.NoError(t, h.Store.Renew(t.Context(), v.Record.ID, v.Token, long))
}

// A lease is taken and released all the time: who is told that the key is busy is told whose it is, and not of a key that has become free meanwhile.
func elsewhereBusy(t *testing.T, h ElsewhereHarness) {
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	other := h.Reopen(t)
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			verdicts, err := other.Acquire(t.Context(), "other", []keystore.Claim{in("e1", "a")}, long)
			if err == nil && verdicts[0].Outcome == keystore.Fresh {
				err = other.Release(t.Context(), verdicts[0].Record.ID, verdicts[0].Token)
			}
			if err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for ctx.Err() == nil {
		v := acquire(t, h.Store, "one", in("e1", "a"), long)
		if v.Outcome == keystore.Busy {
			require.Equal(t, "other", v.Record.Owner)
			continue
		}
		require.Equal(t, keystore.Fresh, v.Outcome)
		require.NoError(t, h.Store.Release(t.Context(), v.Record.ID, v.Token))
	}
	require.NoError(t, <-ended)
}
