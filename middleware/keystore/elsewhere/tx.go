package elsewhere

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// tx is a transaction of the database whose keys are held elsewhere as long as it is open.
type tx struct {
	keystore.Tx
	store  *Store
	unhook func() bool // from the end of its context

	mu sync.Mutex
	// taken are keys that came without a lease: this transaction holds one for them, so that nobody calls while it decides about them.
	taken map[keystore.ID]keystore.Verdict
}

// deciding begins the owner of such a lease: nobody calls under it.
const deciding = "deciding/"

// leftoverWait bounds the wait for such a lease of another transaction, which has ended in the database already.
const leftoverWait = time.Second

// Claim implements keystore.Tx. A claim with a token is Fresh if the database does not know the key, which is inserted and locked, and the
// token is still the key's elsewhere: in this order, so that whoever takes the lease over afterwards waits for this transaction.
func (t *tx) Claim(ctx context.Context, claims []keystore.Claim) ([]keystore.Verdict, error) {
	inner := slices.Clone(claims)
	for i, c := range inner {
		if c.Token != "" {
			inner[i].Token, inner[i].Held = "", true
		}
	}
	verdicts, err := t.Tx.Claim(ctx, inner)
	if err != nil {
		return nil, err
	}
	for i, c := range claims {
		if c.Token != "" {
			verdicts[i], err = t.check(ctx, c, verdicts[i])
		} else if free(verdicts[i]) {
			verdicts[i], err = t.hold(ctx, c, verdicts[i])
		}
		if err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

// check judges a claim with a token by what the database said to the claim without.
func (t *tx) check(ctx context.Context, c keystore.Claim, v keystore.Verdict) (keystore.Verdict, error) {
	if v.Outcome == keystore.Duplicate {
		// Committed by this holder, whose answer was lost, or by another one: either way it is nobody's lease any more.
		t.settle(ctx, c, completionOf(c, v.Record))
	}
	if free(v) {
		err := t.store.Renew(ctx, c.ID, c.Token, t.store.opts.Lease)
		if err == nil {
			v.Outcome, v.Token = keystore.Fresh, c.Token
			return v, nil
		}
		if !errors.Is(err, keystore.ErrLeaseLost) {
			return v, err
		}
	}
	v.Outcome = keystore.Lost
	return v, nil
}

// hold takes the lease of a key that is free in the database, until the transaction ends.
func (t *tx) hold(ctx context.Context, c keystore.Claim, known keystore.Verdict) (keystore.Verdict, error) {
	c.Epoch = "" // the database says that the key is not completed: no epoch in which it was is of interest
	owner, began := deciding+envelope.NewUUID(), time.Now()
	v, err := t.acquire(ctx, owner, c)
	for err == nil && v.Outcome == keystore.Busy && strings.HasPrefix(v.Record.Owner, deciding) && time.Since(began) < leftoverWait {
		select {
		case <-ctx.Done():
			return known, context.Cause(ctx)
		case <-time.After(5 * time.Millisecond):
		}
		v, err = t.acquire(ctx, owner, c)
	}
	if err != nil {
		return known, remote(err)
	}
	if !free(v) {
		return v, nil
	}
	t.mu.Lock()
	t.taken[c.ID] = v
	t.mu.Unlock()
	if v.Outcome == keystore.TakenOver {
		known.Outcome, known.Record = keystore.TakenOver, v.Record
	}
	return known, nil
}

func (t *tx) acquire(ctx context.Context, owner string, c keystore.Claim) (keystore.Verdict, error) {
	verdicts, err := t.store.leases.Acquire(ctx, owner, []keystore.Claim{c}, t.store.opts.Lease)
	if err != nil {
		return keystore.Verdict{}, err
	}
	return verdicts[0], nil
}

// release takes the leases out of the transaction's hands.
func (t *tx) release() map[keystore.ID]keystore.Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.taken
	t.taken = map[keystore.ID]keystore.Verdict{}
	return taken
}

// Commit implements keystore.Tx. What is then done elsewhere is no condition of it: the database has the keys.
func (t *tx) Commit(ctx context.Context, completions []keystore.Completion) error {
	inner := slices.Clone(completions)
	for i := range inner {
		inner[i].Claim.Token = ""
	}
	defer t.unhook()
	if err := t.Tx.Commit(ctx, inner); err != nil {
		if errors.Is(err, keystore.ErrOutcomeUnknown) {
			t.release() // they end by themselves, and the next claim finds out
		}
		return err
	}
	taken := t.release()
	for _, c := range completions {
		claim := c.Claim
		if v, mine := taken[claim.ID]; mine && !c.Keep {
			claim.Token = v.Token
			delete(taken, claim.ID)
		}
		if claim.Token != "" && !c.Keep {
			t.settle(ctx, claim, c)
		}
	}
	t.giveBack(ctx, taken)
	return nil
}

// Rollback implements keystore.Tx. The leases go first: who waits for the transaction in the database asks for them next.
func (t *tx) Rollback() error {
	t.unhook()
	t.giveBack(context.Background(), t.release())
	return t.Tx.Rollback()
}

// settleTimeout bounds what is done elsewhere when the database has decided.
const settleTimeout = 2 * time.Second

// settle ends a lease as the database has decided about its key. A lease that stays ends by itself.
func (t *tx) settle(ctx context.Context, claim keystore.Claim, c keystore.Completion) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	var err error
	if c.State == keystore.Completed && claim.Epoch != "" {
		c.Claim = claim
		c.Retention = max(c.Retention, time.Second)
		err = t.store.leases.Complete(ctx, []keystore.Completion{c})
	} else {
		err = t.store.leases.Release(ctx, claim.ID, claim.Token)
	}
	if err != nil && !errors.Is(err, keystore.ErrLeaseLost) {
		t.store.opts.Logger.WarnContext(ctx, "a lease could not be ended elsewhere: the key's next copy will", "scope", claim.Scope, "err", err)
	}
}

// giveBack ends the leases that the transaction took and did not need: what was in progress before is so again, and over.
func (t *tx) giveBack(ctx context.Context, taken map[keystore.ID]keystore.Verdict) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for id, v := range taken {
		var err error
		if v.Outcome == keystore.TakenOver {
			err = t.store.leases.Renew(ctx, id, v.Token, time.Millisecond)
		} else {
			err = t.store.leases.Release(ctx, id, v.Token)
		}
		if err != nil && !errors.Is(err, keystore.ErrLeaseLost) {
			t.store.opts.Logger.WarnContext(ctx, "a lease could not be given back elsewhere: it ends by itself", "scope", id.Scope, "err", err)
		}
	}
}
