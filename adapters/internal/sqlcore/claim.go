package sqlcore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// errKeyVanishes is a claim whose key kept appearing and disappearing; a fresh transaction helps.
var errKeyVanishes = errors.New("the key was taken and given up again and again while it was being claimed")

const maxClaimRounds = 8

// term is a lease that claims ask for; nil in a transaction.
type term struct {
	owner string
	lease time.Duration
}

// held is a key that a transaction has claimed.
type held struct {
	fresh bool // the row was inserted here; else it is a failure or a lease that is over, and stays unless it is replaced
	claim keystore.Claim
	at    time.Time // of this process, to see how long ago the claim was
}

// claimer claims keys in one session.
type claimer struct {
	session Session
	term    *term
	claims  []keystore.Claim
	order   []int // the first claim of each key, sorted by key

	verdicts []keystore.Verdict
	inserted map[int]string // index of the claim: its token
	rows     map[int]*row
	waits    map[int]*waiting
}

func newClaimer(s Session, t *term, claims []keystore.Claim) *claimer {
	c := &claimer{
		session: s, term: t, claims: claims,
		verdicts: make([]keystore.Verdict, len(claims)),
		inserted: map[int]string{}, rows: map[int]*row{}, waits: map[int]*waiting{},
	}
	c.order = make([]int, len(claims))
	for i := range claims {
		c.order[i] = i
	}
	slices.SortStableFunc(c.order, func(a, b int) int { return compareIDs(claims[a].ID, claims[b].ID) })
	c.order = slices.CompactFunc(c.order, func(a, b int) bool { return claims[a].ID == claims[b].ID })
	return c
}

func compareIDs(a, b keystore.ID) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Key, b.Key))
}

// run claims all keys and fills the verdicts.
func (c *claimer) run(ctx context.Context) error {
	tokened, open := c.split()
	if err := c.check(ctx, tokened); err != nil {
		return err
	}
	for round := 0; len(open) > 0; round++ {
		if round == maxClaimRounds {
			return contended{errKeyVanishes}
		}
		missing, err := c.take(ctx, open)
		if err != nil {
			return err
		}
		open = missing
	}
	if err := c.giveBack(ctx); err != nil {
		return err
	}
	c.repeats()
	return nil
}

func (c *claimer) split() (tokened, open []int) {
	for _, i := range c.order {
		if c.claims[i].Token != "" {
			tokened = append(tokened, i)
		} else {
			open = append(open, i)
		}
	}
	return tokened, open
}

// take inserts the keys of open, reads again what was there already, judges, and returns those whose row was gone by then.
func (c *claimer) take(ctx context.Context, open []int) (missing []int, err error) {
	if err := c.session.Send(ctx, c.insert(open), c.lookParked(open)); err != nil {
		return nil, fmt.Errorf("claim keys: %w", err)
	}
	var lost []int
	for _, i := range open {
		if _, ok := c.inserted[i]; ok {
			c.verdicts[i] = c.fresh(i)
		} else {
			lost = append(lost, i)
		}
	}
	if len(lost) == 0 {
		return nil, nil
	}
	if err := c.session.Send(ctx, c.reread(lost)); err != nil {
		return nil, fmt.Errorf("read claimed keys: %w", err)
	}
	for _, i := range lost {
		done, err := c.settle(ctx, i)
		if err != nil {
			return nil, err
		}
		if !done {
			missing = append(missing, i)
		}
	}
	return missing, nil
}

// A transactional claim writes the key as its completion is expected to leave it: nobody sees the row before the commit, and the
// commit mends what came otherwise.
const insertTransactional = `WITH v(scope, idempotency_key, fingerprint, expires, owner, ord) AS ({rows})
INSERT INTO processed_events (scope, idempotency_key, fingerprint, status, processed_at, expires_at, owner)
SELECT v.scope, v.idempotency_key, v.fingerprint, 'completed', {now}, {at v.expires}, v.owner FROM v WHERE true ORDER BY v.ord
ON CONFLICT DO NOTHING RETURNING scope, idempotency_key, token`

const insertLeased = `WITH v(scope, idempotency_key, fingerprint, token, owner, lease, ord) AS ({rows})
INSERT INTO processed_events (scope, idempotency_key, fingerprint, status, token, owner, lease_until, processed_at, first_at)
SELECT v.scope, v.idempotency_key, v.fingerprint, 'in_progress', v.token, v.owner, {at v.lease}, {now}, {now} FROM v WHERE true ORDER BY v.ord
ON CONFLICT DO NOTHING RETURNING scope, idempotency_key, token`

func (c *claimer) insert(open []int) *Stmt {
	s := &Stmt{Query: insertTransactional, Set: &Set{Types: []string{"text", "text", "text", "later", "text"}}}
	if c.term != nil {
		s = &Stmt{Query: insertLeased, Set: &Set{Types: []string{"text", "text", "text", "text", "text", "later"}}}
	}
	index := map[keystore.ID]int{}
	for _, i := range open {
		k := c.claims[i]
		index[k.ID] = i
		cells := []any{k.Scope, k.Key, k.Fingerprint}
		if c.term != nil {
			cells = append(cells, newToken(), c.term.owner, Later(c.term.lease))
		} else {
			cells = append(cells, Later(k.Retention), readable(k.Owner, maxOwner))
		}
		s.Set.Rows = append(s.Set.Rows, cells)
	}
	s.Row = func(scan Scan) error {
		var id keystore.ID
		var token *string
		if err := scan(&id.Scope, &id.Key, &token); err != nil {
			return err
		}
		c.inserted[index[id]] = deref(token)
		return nil
	}
	return s
}

const selectParked = `WITH v(scope, identity, ordering_id, ord) AS ({rows})
SELECT v.ord, p.id, p.fingerprint, 0 FROM v JOIN parked p ON p.scope = v.scope AND p.identity = v.identity AND p.state = 'waiting'
UNION ALL
SELECT h.ord, 0, '', h.head FROM (
	SELECT v.ord, (SELECT min(p.id) FROM parked p WHERE p.scope = v.scope AND p.ordering_id = v.ordering_id AND (p.state = 'waiting' OR p.holds)) AS head
	FROM v WHERE v.ordering_id IS NOT NULL) h
WHERE h.head IS NOT NULL`

// lookParked reads what parking holds against the claims. It runs after the insert, in a statement of its own: the claim comes
// first, then the parked row, and what a rival parked while the insert waited for it is seen.
func (c *claimer) lookParked(open []int) *Stmt {
	s := &Stmt{Query: selectParked, Set: &Set{Types: []string{"text", "bytes", "bytes"}}}
	for _, i := range open {
		k := c.claims[i]
		s.Set.Rows = append(s.Set.Rows, []any{k.Scope, identity(k.Key, ""), orderID(k.OrderingKey)})
		delete(c.waits, i)
	}
	s.Row = func(scan Scan) error {
		var ord, id, head int64
		var fingerprint string
		if err := scan(&ord, &id, &fingerprint, &head); err != nil {
			return err
		}
		i := open[ord-1]
		if c.waits[i] == nil {
			c.waits[i] = &waiting{}
		}
		if head != 0 {
			c.waits[i].head = head
		} else {
			c.waits[i].rows = append(c.waits[i].rows, waitingRow{id, fingerprint})
		}
		return nil
	}
	return s
}

const selectKeys = `WITH v(scope, idempotency_key, ord) AS ({rows})
SELECT v.ord, ` + recordColumns + ` FROM v JOIN processed_events p ON p.scope = v.scope AND p.idempotency_key = v.idempotency_key`

// reread reads rows that were there before the insert.
func (c *claimer) reread(lost []int) *Stmt {
	for _, i := range lost {
		delete(c.rows, i)
	}
	return c.read(selectKeys, lost, false)
}

func (c *claimer) readLocked(which []int) *Stmt {
	return c.read(selectKeys+` ORDER BY v.ord {lock p}`, which, true)
}

func (c *claimer) read(query string, which []int, locked bool) *Stmt {
	s := &Stmt{Query: query, Set: &Set{Types: []string{"text", "text"}}}
	for _, i := range which {
		s.Set.Rows = append(s.Set.Rows, []any{c.claims[i].Scope, c.claims[i].Key})
	}
	s.Row = func(scan Scan) error {
		r := row{locked: locked}
		var ord int64
		err := r.scan(func(dest ...any) error { return scan(append([]any{&ord}, dest...)...) })
		if err == nil {
			c.rows[which[ord-1]] = &r
		}
		return err
	}
	return s
}

// fresh is the verdict for a key that was inserted.
func (c *claimer) fresh(i int) keystore.Verdict {
	v := keystore.Verdict{Outcome: c.yields(i), Record: keystore.Record{ID: c.claims[i].ID}}
	if v.Outcome == keystore.Fresh {
		v.Token = c.inserted[i]
	}
	return v
}

// yields is what parking holds against a claim; Fresh is nothing. Who holds the key already has passed by what was parked.
func (c *claimer) yields(i int) keystore.Outcome {
	if c.claims[i].Held {
		return keystore.Fresh
	}
	return c.waits[i].verdict(c.claims[i])
}

// settle judges a key whose row was there already. It returns false when the row has gone or changed meanwhile.
func (c *claimer) settle(ctx context.Context, i int) (bool, error) {
	r, claim := c.rows[i], c.claims[i]
	if r == nil {
		return false, nil
	}
	owner := ""
	if c.term != nil {
		owner = c.term.owner
	}
	v := keystore.Verdict{Outcome: judge(claim, r, owner), Record: r.Record}
	if v.Outcome == keystore.Fresh || v.Outcome == keystore.TakenOver && r.Owner != owner {
		if yields := c.yields(i); yields != keystore.Fresh {
			v.Outcome = yields
		}
	}
	switch takes := v.Outcome == keystore.Fresh || v.Outcome == keystore.TakenOver; {
	case takes && c.term != nil:
		return c.lease(ctx, i, v)
	case takes && !r.locked:
		return c.lockAndSettle(ctx, i)
	}
	c.verdicts[i] = v
	return true, nil
}

// lockAndSettle judges again a key that the transaction may take over, once its row is locked.
func (c *claimer) lockAndSettle(ctx context.Context, i int) (bool, error) {
	delete(c.rows, i)
	if err := c.session.Send(ctx, c.readLocked([]int{i})); err != nil {
		return false, fmt.Errorf("lock a key to take it over: %w", err)
	}
	return c.settle(ctx, i)
}

const deleteKeys = `WITH v(scope, idempotency_key, ord) AS ({rows})
DELETE FROM processed_events WHERE (scope, idempotency_key) IN (SELECT v.scope, v.idempotency_key FROM v)`

// giveBack removes the keys that were inserted for claims that must yield to parked rows.
func (c *claimer) giveBack(ctx context.Context) error {
	var ids []keystore.ID
	for i := range c.inserted {
		if c.verdicts[i].Outcome != keystore.Fresh {
			ids = append(ids, c.claims[i].ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	if err := c.session.Send(ctx, deleteOf(ids)); err != nil {
		return fmt.Errorf("give back keys: %w", err)
	}
	return nil
}

func deleteOf(ids []keystore.ID) *Stmt {
	slices.SortFunc(ids, compareIDs)
	s := &Stmt{Query: deleteKeys, Set: &Set{Types: []string{"text", "text"}}}
	for _, id := range ids {
		s.Set.Rows = append(s.Set.Rows, []any{id.Scope, id.Key})
	}
	return s
}

// repeats judges second claims of one key by the first.
func (c *claimer) repeats() {
	first := map[keystore.ID]int{}
	for _, i := range c.order {
		first[c.claims[i].ID] = i
	}
	for i, claim := range c.claims {
		f := first[claim.ID]
		if f == i {
			continue
		}
		v := c.verdicts[f]
		v.Token = ""
		known := v.Record.Fingerprint
		if v.Outcome == keystore.Fresh || v.Outcome == keystore.TakenOver {
			v.Outcome, known = keystore.Duplicate, c.claims[f].Fingerprint
		}
		if !envelope.SameFingerprint(known, claim.Fingerprint) {
			v.Outcome = keystore.Mismatch
		}
		c.verdicts[i] = v
	}
}

// contended marks an error that a fresh transaction mends.
type contended struct{ err error }

func (c contended) Error() string { return c.err.Error() }
func (c contended) Unwrap() error { return c.err }

// Contended reports that err is one of this package's own that a fresh transaction mends.
func Contended(err error) bool {
	var c contended
	return errors.As(err, &c)
}
