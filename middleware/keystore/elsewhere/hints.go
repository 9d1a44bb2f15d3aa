package elsewhere

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

const (
	// hintTimeout bounds one question elsewhere: a hint that takes longer saves nothing.
	hintTimeout = 250 * time.Millisecond
	// epochTimeout bounds the question for the epoch, which may wait for a connection of the database.
	epochTimeout = time.Second
	// After a failure nothing is asked for a while that doubles from the first pause to the longest.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// A store that is now and then too slow is told of once in a while.
	tellEvery = time.Minute
)

// Hints knows of keys that they are certainly completed. Safe for concurrent use.
type Hints struct {
	epochs keystore.Epochs
	store  keystore.Elsewhere
	log    *slog.Logger

	asking sync.Mutex // held while the database is asked for its epoch

	mu       sync.Mutex
	epoch    string
	asked    time.Time // before the question whose answer epoch is
	failures int
	paused   time.Time // until then nothing is asked
	told     time.Time // when a pause was last logged
}

// NewHints makes Hints over the database's epochs and a store elsewhere. It starts nothing.
func NewHints(epochs keystore.Epochs, store keystore.Elsewhere, log *slog.Logger) *Hints {
	return &Hints{epochs: epochs, store: store, log: log}
}

// Open returns the epoch that a completion from now on may be noted under; "" while hints are paused.
func (h *Hints) Open(ctx context.Context) string {
	if h.resting() {
		return ""
	}
	bounded, cancel := context.WithTimeout(ctx, epochTimeout)
	defer cancel()
	epoch, err := h.present(bounded)
	if err != nil {
		h.failed(ctx, err)
		return ""
	}
	return epoch
}

// Recall returns the record of a key that is certainly completed in the epoch, with that fingerprint. False says nothing.
func (h *Hints) Recall(ctx context.Context, epoch string, id keystore.ID, fingerprint string) (keystore.Record, bool) {
	if epoch == "" || h.resting() {
		return keystore.Record{}, false
	}
	bounded, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	records, err := h.store.Peek(bounded, []keystore.ID{id})
	if err != nil {
		h.failed(ctx, err)
		return keystore.Record{}, false
	}
	h.answered()
	r := records[0]
	certain := r.State == keystore.Completed && r.Epoch == epoch && envelope.SameFingerprint(r.Fingerprint, fingerprint)
	// The name must be good at this moment, after the answer.
	return r, certain && h.trusted(epoch)
}

// Note remembers a completion that has committed. The epoch of its claim was opened before its transaction began; without one nothing is
// noted.
func (h *Hints) Note(ctx context.Context, c keystore.Completion) {
	if c.Claim.Epoch == "" || c.Retention <= 0 || h.resting() {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintTimeout)
	defer cancel()
	if err := h.store.Note(bounded, []keystore.Completion{c}); err != nil {
		h.failed(ctx, err)
		return
	}
	h.answered()
}

// NoteRecord remembers a completed key as the database has it, for the rest of its time.
func (h *Hints) NoteRecord(ctx context.Context, claim keystore.Claim, r keystore.Record) {
	h.Note(ctx, completionOf(claim, r))
}

// completionOf is the completion that left a record.
func completionOf(claim keystore.Claim, r keystore.Record) keystore.Completion {
	claim.ID, claim.Fingerprint = r.ID, r.Fingerprint
	return keystore.Completion{Claim: claim, State: keystore.Completed, Result: r.Result, Owner: r.Owner, Retention: time.Until(r.ExpiresAt)}
}

// Distrust asks for the epoch anew: the connection to the database broke, so that it may be another server now.
func (h *Hints) Distrust() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch = ""
}

// present returns the epoch's name, not older than keystore.EpochTrust. One caller asks again before that; the others go on meanwhile.
func (h *Hints) present(ctx context.Context) (string, error) {
	epoch, age := h.known()
	if epoch != "" && age < keystore.EpochTrust/2 {
		return epoch, nil
	}
	if !h.asking.TryLock() {
		if epoch != "" && age < keystore.EpochTrust {
			return epoch, nil
		}
		h.asking.Lock()
	}
	defer h.asking.Unlock()
	if epoch, age := h.known(); epoch != "" && age < keystore.EpochTrust/2 {
		return epoch, nil // asked by the one before
	}
	return h.ask(ctx)
}

// ask reads the epoch's name from the database now.
func (h *Hints) ask(ctx context.Context) (string, error) {
	asked := time.Now()
	epoch, err := h.epochs.Epoch(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.epoch = ""
		return "", err
	}
	h.epoch, h.asked = epoch, asked
	return epoch, nil
}

// known returns the name and how long ago it was asked for, by the clock that ran on further: one of them stands still while a machine
// sleeps.
func (h *Hints) known() (string, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	return h.epoch, max(now.Sub(h.asked), now.Round(0).Sub(h.asked.Round(0)))
}

func (h *Hints) trusted(epoch string) bool {
	known, age := h.known()
	return known == epoch && age < keystore.EpochTrust
}

func (h *Hints) resting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.paused)
}

func (h *Hints) answered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = 0
}

// failed begins a pause, unless only the caller gave up.
func (h *Hints) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	now := time.Now()
	fresh := !now.Before(h.paused)
	if fresh {
		h.paused = now.Add(min(firstPause<<min(h.failures, 10), longestPause))
		h.failures++
	}
	tell := fresh && now.Sub(h.told) >= tellEvery
	if tell {
		h.told = now
	}
	h.mu.Unlock()
	if tell {
		h.log.WarnContext(ctx, "hints of completed keys are paused: duplicates cost a transaction meanwhile", "err", err)
	}
}
