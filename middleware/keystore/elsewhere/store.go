package elsewhere

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/middleware/keystore"
)

// Options set up a Store.
type Options struct {
	// Lease is how long a holder that records its result holds its lease from then on.
	Lease time.Duration
	// Tx are the options of the short transactions that look at the database.
	Tx     keystore.TxOptions
	Logger *slog.Logger
}

// Store is a database whose leases are elsewhere. Safe for concurrent use.
type Store struct {
	keystore.Store
	leases keystore.Elsewhere
	hints  *Hints
	opts   Options
}

var _ keystore.Store = (*Store)(nil)

// New makes a Store of a database and of where its leases are. hints is of the same two.
func New(database keystore.Store, leases keystore.Elsewhere, hints *Hints, opts Options) *Store {
	return &Store{Store: database, leases: leases, hints: hints, opts: opts}
}

// remoteError is an error of the store elsewhere.
type remoteError struct{ err error }

func (e *remoteError) Error() string { return e.err.Error() }
func (e *remoteError) Unwrap() error { return e.err }

func remote(err error) error {
	if err == nil || errors.Is(err, keystore.ErrLeaseLost) {
		return err
	}
	return &remoteError{err}
}

// Classify implements keystore.Store.
func (s *Store) Classify(err error) keystore.Fault {
	if far := (*remoteError)(nil); errors.As(err, &far) {
		return s.leases.Classify(far.err)
	}
	return s.Store.Classify(err)
}

// maxRounds bounds the looks at a key that changes between them.
const maxRounds = 8

// Acquire implements keystore.Leasing. Each claim is answered by itself.
func (s *Store) Acquire(ctx context.Context, owner string, claims []keystore.Claim, lease time.Duration) ([]keystore.Verdict, error) {
	verdicts := make([]keystore.Verdict, len(claims))
	for i, c := range claims {
		v, err := s.acquire(ctx, owner, c, lease)
		if err != nil {
			return nil, fmt.Errorf("acquire a key: %w", err)
		}
		verdicts[i] = v
	}
	return verdicts, nil
}

// acquire asks the database, then elsewhere, then the database again: what a holder of before committed between the two.
func (s *Store) acquire(ctx context.Context, owner string, c keystore.Claim, lease time.Duration) (keystore.Verdict, error) {
	var err error
	if c.Epoch, err = s.hints.present(ctx); err != nil {
		return keystore.Verdict{}, err
	}
	for round := 0; ; round++ {
		known, err := s.look(ctx, c)
		if err != nil {
			return keystore.Verdict{}, err
		}
		if known.Outcome == keystore.Duplicate {
			s.adopt(ctx, owner, c, known.Record, lease)
		}
		if !free(known) {
			return known, nil
		}
		v, again, err := s.take(ctx, owner, c, known, lease)
		if err != nil || !again {
			return v, err
		}
		if round == maxRounds {
			return keystore.Verdict{Outcome: keystore.Busy, Record: keystore.Record{ID: c.ID}}, nil // it changes all the time
		}
		if c.Epoch, err = s.hints.ask(ctx); err != nil {
			return keystore.Verdict{}, err
		}
	}
}

func free(v keystore.Verdict) bool {
	return v.Outcome == keystore.Fresh || v.Outcome == keystore.TakenOver
}

// look tells what a claim meets in the database, and waits for a rival's transaction that has inserted the key.
func (s *Store) look(ctx context.Context, c keystore.Claim) (keystore.Verdict, error) {
	tx, err := s.Store.Begin(ctx, s.opts.Tx)
	if err != nil {
		return keystore.Verdict{}, err
	}
	defer func() { _ = tx.Rollback() }()
	verdicts, err := tx.Claim(ctx, []keystore.Claim{c})
	if err != nil {
		return keystore.Verdict{}, err
	}
	return verdicts[0], nil
}

// take acquires a key elsewhere that was free in the database. again says that it is not free there any more.
func (s *Store) take(ctx context.Context, owner string, c keystore.Claim, known keystore.Verdict, lease time.Duration) (_ keystore.Verdict, again bool, _ error) {
	verdicts, err := s.leases.Acquire(ctx, owner, []keystore.Claim{c}, lease)
	if err != nil {
		return keystore.Verdict{}, false, remote(err)
	}
	v := verdicts[0]
	if v.Outcome == keystore.Duplicate {
		// Completed in this epoch, so between the two looks; or an epoch of before the key was forgotten; or the database has
		// just removed the key after its time.
		return v, !s.sameEpoch(ctx, c), nil
	}
	if !free(v) {
		return v, false, nil
	}
	records, err := s.Store.Peek(ctx, []keystore.ID{c.ID})
	if err != nil {
		return v, false, err
	}
	switch state := records[0].State; {
	case state == keystore.Completed:
		return v, true, nil
	case state == keystore.InDoubt, state == keystore.Failed && !c.Redriven:
		return v, true, remote(s.leases.Release(ctx, c.ID, v.Token))
	}
	if known.Outcome == keystore.TakenOver { // a lease of the database's own, from before keys were kept elsewhere
		v.Outcome, v.Record.FirstAt = keystore.TakenOver, known.Record.FirstAt
		v.Record.Takeovers = max(v.Record.Takeovers, known.Record.Takeovers)
	}
	return v, false, nil
}

// sameEpoch reports that the claim's epoch is still the database's, asked now.
func (s *Store) sameEpoch(ctx context.Context, c keystore.Claim) bool {
	epoch, err := s.hints.ask(ctx)
	return err == nil && epoch == c.Epoch
}

// adopt completes elsewhere what the database has completed: a lease whose holder ended after its commit, or a key that was lost there. What
// goes wrong costs a transaction next time.
func (s *Store) adopt(ctx context.Context, owner string, c keystore.Claim, r keystore.Record, lease time.Duration) {
	if s.hints.resting() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	c.Fingerprint = r.Fingerprint
	verdicts, err := s.leases.Acquire(ctx, owner, []keystore.Claim{c}, lease)
	if err == nil && free(verdicts[0]) {
		c.Token = verdicts[0].Token
		done := completionOf(c, r)
		done.Retention = max(done.Retention, time.Second)
		err = s.leases.Complete(ctx, []keystore.Completion{done})
	}
	if err != nil {
		s.opts.Logger.DebugContext(ctx, "a completed key could not be noted elsewhere", "scope", c.Scope, "err", err)
	}
}

// Peek implements keystore.Desk. A key that the database does not know may be in progress elsewhere.
func (s *Store) Peek(ctx context.Context, ids []keystore.ID) ([]keystore.Record, error) {
	records, err := s.Store.Peek(ctx, ids)
	if err != nil {
		return nil, err
	}
	held, err := s.leases.Peek(ctx, ids)
	if err != nil {
		return nil, remote(err)
	}
	for i := range records {
		if records[i].State == keystore.Absent && held[i].State == keystore.InProgress && !strings.HasPrefix(held[i].Owner, deciding) {
			records[i] = held[i]
		}
	}
	return records, nil
}

// Renew implements keystore.Leasing.
func (s *Store) Renew(ctx context.Context, id keystore.ID, token string, lease time.Duration) error {
	return remote(s.leases.Renew(ctx, id, token, lease))
}

// Release implements keystore.Leasing.
func (s *Store) Release(ctx context.Context, id keystore.ID, token string) error {
	return remote(s.leases.Release(ctx, id, token))
}

// Complete implements keystore.Leasing.
func (s *Store) Complete(ctx context.Context, completions []keystore.Completion) error {
	tx, err := s.Begin(ctx, s.opts.Tx)
	if err != nil {
		return fmt.Errorf("complete keys: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	claims := make([]keystore.Claim, len(completions))
	for i, c := range completions {
		claims[i] = c.Claim
	}
	verdicts, err := tx.Claim(ctx, claims)
	if err != nil {
		return fmt.Errorf("complete keys: %w", err)
	}
	if slices.ContainsFunc(verdicts, func(v keystore.Verdict) bool { return v.Outcome != keystore.Fresh }) {
		return fmt.Errorf("complete keys: %w", keystore.ErrLeaseLost)
	}
	return tx.Commit(ctx, completions)
}

// Begin implements keystore.Transactional.
func (s *Store) Begin(ctx context.Context, opts keystore.TxOptions) (keystore.Tx, error) {
	inner, err := s.Store.Begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	t := &tx{Tx: inner, store: s, taken: map[keystore.ID]keystore.Verdict{}}
	t.unhook = context.AfterFunc(ctx, func() { t.giveBack(ctx, t.release()) })
	return t, nil
}
