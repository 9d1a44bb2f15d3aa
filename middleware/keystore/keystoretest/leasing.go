package keystoretest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// LeasingHarness is a store of leases under test: empty, and nobody else's. It may be a whole Store.
type LeasingHarness struct {
	Store    keystore.Leasing
	Classify func(error) keystore.Fault
	// Reopen opens the same data a second time, as another process would. It closes it at the end of the test.
	Reopen func(t *testing.T) keystore.Leasing
	// Advance moves the store's clock. Nil where it cannot be moved: then the suite waits.
	Advance func(d time.Duration)
}

type leasingTest struct {
	name string
	run  func(t *testing.T, h LeasingHarness)
}

var leasingTests = []leasingTest{
	{"Acquire", leaseAcquire},
	{"SameOwnerAsksAgain", leaseSameOwner},
	{"OneOfTwentyRivals", leaseRivals},
	{"RivalsForALeaseThatIsOver", leaseRivalsOver},
	{"SeveralInOneCall", leaseSeveral},
	{"F015KeysAreByteExact", leaseByteExact},
	{"Mismatch", leaseMismatch},
	{"CompleteKeepsTheResult", leaseComplete},
	{"CompletedOnce", leaseCompleteAgain},
	{"ReleaseLeavesNoKey", leaseRelease},
	{"RenewalHoldsALongRun", leaseRenewal},
	{"TakeoverGetsANewToken", fencingTakeover},
	{"LateHolderIsRefused", leaseLateHolder},
	{"JustExpiredIsStillTheHolders", fencingJustExpired},
}

// RunLeasing runs the part of the suite that needs leases alone. newHarness is called once for each test.
func RunLeasing(t *testing.T, newHarness func(t *testing.T) LeasingHarness) {
	t.Helper()
	for _, c := range leasingTests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, newHarness(t))
		})
	}
}

// leasing is the part of a harness that leases need.
func (h Harness) leasing() LeasingHarness {
	return LeasingHarness{
		Store: h.Store, Classify: h.Store.Classify, Advance: h.Advance,
		Reopen: func(t *testing.T) keystore.Leasing { return h.Reopen(t).Store },
	}
}

// wholeTests are the leasing tests for a store that is more than leases.
func wholeTests() []test {
	var tests []test
	for _, c := range leasingTests {
		tests = append(tests, test{c.name, func(t *testing.T, h Harness) { c.run(t, h.leasing()) }})
	}
	return tests
}

// elapse lets the store's clock run on by d.
func (h LeasingHarness) elapse(d time.Duration) { Harness{Advance: h.Advance}.elapse(d) }

// acquire asks for one lease.
func acquire(t *testing.T, s keystore.Leasing, owner string, c keystore.Claim, lease time.Duration) keystore.Verdict {
	t.Helper()
	verdicts, err := s.Acquire(t.Context(), owner, []keystore.Claim{c}, lease)
	require.NoError(t, err)
	require.Len(t, verdicts, 1)
	return verdicts[0]
}

// takeOver acquires the key once the lease of somebody else is over.
func takeOver(t *testing.T, h LeasingHarness, owner string, c keystore.Claim) keystore.Verdict {
	t.Helper()
	if h.Advance != nil {
		h.Advance(short)
	}
	var v keystore.Verdict
	eventually(t, func() error {
		if v = acquire(t, h.Store, owner, c, long); v.Outcome != keystore.TakenOver {
			return fmt.Errorf("outcome %q", v.Outcome)
		}
		return nil
	})
	return v
}

// held is a claim by the token of a lease.
func held(c keystore.Claim, v keystore.Verdict) keystore.Claim {
	c.Token = v.Token
	return c
}

func leaseAcquire(t *testing.T, h LeasingHarness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.Equal(t, keystore.Fresh, v.Outcome)
	require.NotEmpty(t, v.Token)
	busy := acquire(t, h.Reopen(t), "two", claim("a"), long)
	require.Equal(t, keystore.Busy, busy.Outcome)
	require.Empty(t, busy.Token)
	require.Equal(t, "one", busy.Record.Owner)
	require.Greater(t, busy.Record.LeaseLeft, long/2)
	require.LessOrEqual(t, busy.Record.LeaseLeft, long)
	require.WithinDuration(t, time.Now(), busy.Record.FirstAt, time.Minute)
}

func leaseSameOwner(t *testing.T, h LeasingHarness) {
	first := acquire(t, h.Store, "one", claim("a"), short)
	again := acquire(t, h.Store, "one", claim("a"), long)
	require.Equal(t, keystore.Fresh, again.Outcome)
	require.Equal(t, first.Token, again.Token)
	h.elapse(short)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", claim("a"), long).Outcome, "asking again prolonged the lease")
}

func leaseRivals(t *testing.T, h LeasingHarness) {
	got := h.rivals(t, claim("a"), claim("b"))
	require.Equal(t, map[keystore.Outcome]int{keystore.Fresh: 2, keystore.Busy: 38}, got)
}

func leaseRivalsOver(t *testing.T, h LeasingHarness) {
	acquire(t, h.Store, "dead", claim("a"), time.Millisecond)
	h.elapse(20 * time.Millisecond)
	got := h.rivals(t, claim("a"))
	require.Equal(t, map[keystore.Outcome]int{keystore.TakenOver: 1, keystore.Busy: 19}, got)
}

// rivals lets twenty owners acquire the claims at once and counts the outcomes.
func (h LeasingHarness) rivals(t *testing.T, claims ...keystore.Claim) map[keystore.Outcome]int {
	t.Helper()
	var mu sync.Mutex
	outcomes := map[keystore.Outcome]int{}
	stores := []keystore.Leasing{h.Store, h.Reopen(t)}
	errs := make([]error, 20)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			verdicts, err := stores[i%2].Acquire(t.Context(), fmt.Sprint("owner-", i), claims, long)
			for err != nil && h.Classify(err) == keystore.FaultContention {
				verdicts, err = stores[i%2].Acquire(t.Context(), fmt.Sprint("owner-", i), claims, long)
			}
			mu.Lock()
			defer mu.Unlock()
			errs[i] = err
			for _, v := range verdicts {
				outcomes[v.Outcome]++
			}
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	return outcomes
}

func leaseSeveral(t *testing.T, h LeasingHarness) {
	done := acquire(t, h.Store, "one", claim("done"), long)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("done"), done), "")}))
	verdicts, err := h.Store.Acquire(t.Context(), "owner", []keystore.Claim{claim("z"), claim("done"), claim("a")}, long)
	require.NoError(t, err)
	require.Equal(t, keystore.Fresh, verdicts[0].Outcome)
	require.Equal(t, keystore.Duplicate, verdicts[1].Outcome)
	require.Equal(t, keystore.Fresh, verdicts[2].Outcome)
	require.NotEqual(t, verdicts[0].Token, verdicts[2].Token)
	require.NoError(t, h.Store.Renew(t.Context(), claim("z").ID, verdicts[0].Token, long))
	require.ErrorIs(t, h.Store.Renew(t.Context(), claim("z").ID, verdicts[2].Token, long), keystore.ErrLeaseLost)
}

func leaseByteExact(t *testing.T, h LeasingHarness) {
	ids := []keystore.ID{
		{Scope: scope, Key: "ord-A1"}, {Scope: scope, Key: "ord-a1"}, {Scope: scope, Key: "ord-a1 "}, {Scope: scope, Key: "ord-\u00e1"},
		{Scope: scope, Key: "ord-a\u0301"}, {Scope: scope, Key: "{ord}a1"}, {Scope: scope, Key: "{ord}a2"}, {Scope: scope, Key: "}{"},
		{Scope: scope + ":a", Key: "b"}, {Scope: scope, Key: "a:b"}, {Scope: scope + ":a:b", Key: "\u2603"}, {Scope: scope, Key: "*"},
	}
	for i, id := range ids {
		v := acquire(t, h.Store, "one", keystore.Claim{ID: id, Fingerprint: printA}, long)
		require.Equal(t, keystore.Fresh, v.Outcome, "%d %q", i, id)
	}
	for _, id := range ids {
		v := acquire(t, h.Store, "two", keystore.Claim{ID: id, Fingerprint: printA}, long)
		require.Equal(t, keystore.Busy, v.Outcome, "%q", id)
		require.Equal(t, id, v.Record.ID)
	}
}

func leaseMismatch(t *testing.T, h LeasingHarness) {
	other := claim("a")
	other.Fingerprint = printB
	none, kind := claim("a"), claim("a")
	none.Fingerprint, kind.Fingerprint = "", "json:1:cccc"
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.Equal(t, keystore.Mismatch, acquire(t, h.Store, "two", other, long).Outcome)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", none, long).Outcome)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", kind, long).Outcome, "prints of different kinds say nothing")
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), v), "")}))
	require.Equal(t, keystore.Mismatch, acquire(t, h.Store, "two", other, long).Outcome)
	require.Equal(t, keystore.Duplicate, acquire(t, h.Store, "two", none, long).Outcome)
	require.Equal(t, keystore.Duplicate, acquire(t, h.Store, "two", kind, long).Outcome)
}

func leaseComplete(t *testing.T, h LeasingHarness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), v), `{"sent":true}`)}))
	again := acquire(t, h.Store, "two", claim("a"), long)
	require.Equal(t, keystore.Duplicate, again.Outcome)
	require.Equal(t, `{"sent":true}`, string(again.Record.Result))
	require.ErrorIs(t, h.Store.Renew(t.Context(), claim("a").ID, v.Token, long), keystore.ErrLeaseLost)
}

// leaseCompleteAgain: a key is completed by one holder, once, and a bare claim is no completion.
func leaseCompleteAgain(t *testing.T, h LeasingHarness) {
	first := acquire(t, h.Store, "one", claim("a"), short)
	second := takeOver(t, h, "two", claim("a"))
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), second), `"second"`)}))
	require.ErrorIs(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), first), `"first"`)}), keystore.ErrLeaseLost)
	require.Equal(t, `"second"`, string(acquire(t, h.Store, "three", claim("a"), long).Record.Result))
}

func leaseRelease(t *testing.T, h LeasingHarness) {
	v := acquire(t, h.Store, "one", claim("a"), long)
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, "not the token"))
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", claim("a"), long).Outcome, "a lost lease is no error and changes nothing")
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, v.Token))
	next := acquire(t, h.Store, "two", claim("a"), long)
	require.Equal(t, keystore.Fresh, next.Outcome, "nobody takes over what was given up")
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, v.Token))
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "three", claim("a"), long).Outcome)
}

// leaseRenewal holds a key for longer than its lease by renewing it. On a machine that stands still for a whole lease the
// other rightly takes over: then another key is held.
func leaseRenewal(t *testing.T, h LeasingHarness) {
	const lease = 4 * time.Second
	other := h.Reopen(t)
	holds := func(c keystore.Claim) error {
		v := acquire(t, h.Store, "one", c, lease)
		for range 4 {
			h.elapse(lease / 3)
			renewed := time.Now()
			require.NoError(t, h.Store.Renew(t.Context(), c.ID, v.Token, lease))
			outcome := acquire(t, other, "two", c, long).Outcome
			if took := time.Since(renewed); outcome != keystore.Busy && took >= lease {
				return fmt.Errorf("the machine stood still: the answer %q to a renewal and a rival took %v", outcome, took)
			}
			require.Equal(t, keystore.Busy, outcome)
		}
		require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(c, v), "")}))
		return nil
	}
	n := 0
	eventually(t, func() error { n++; return holds(claim(fmt.Sprint("held", n))) })
}

func fencingTakeover(t *testing.T, h LeasingHarness) {
	first := acquire(t, h.Store, "one", claim("a"), short)
	second := takeOver(t, h, "two", claim("a"))
	require.NotEqual(t, first.Token, second.Token)
	require.Equal(t, 1, second.Record.Takeovers)
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "three", claim("a"), long).Outcome)
	again := acquire(t, h.Store, "two", claim("a"), long)
	require.Equal(t, second.Token, again.Token)
	require.Equal(t, keystore.TakenOver, again.Outcome, "an earlier call may have had its effect, also when asked again")
}

func leaseLateHolder(t *testing.T, h LeasingHarness) {
	late := acquire(t, h.Store, "one", claim("a"), short)
	now := takeOver(t, h, "two", claim("a"))

	require.ErrorIs(t, h.Store.Renew(t.Context(), claim("a").ID, late.Token, long), keystore.ErrLeaseLost)
	require.ErrorIs(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), late), `"late"`)}), keystore.ErrLeaseLost)
	require.NoError(t, h.Store.Release(t.Context(), claim("a").ID, late.Token))

	require.NoError(t, h.Store.Renew(t.Context(), claim("a").ID, now.Token, long))
	require.NoError(t, h.Store.Complete(t.Context(), []keystore.Completion{completed(held(claim("a"), now), `"now"`)}))
}

func fencingJustExpired(t *testing.T, h LeasingHarness) {
	v := acquire(t, h.Store, "one", claim("a"), 50*time.Millisecond)
	h.elapse(100 * time.Millisecond)
	require.NoError(t, h.Store.Renew(t.Context(), claim("a").ID, v.Token, long))
	require.Equal(t, keystore.Busy, acquire(t, h.Store, "two", claim("a"), long).Outcome)
}
