package sqlcore

import (
	"encoding/json"
	"time"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/keystore"
)

// recordColumns are what row.scan reads.
const recordColumns = `p.scope, p.idempotency_key, p.status, p.fingerprint, p.result, p.owner, p.token,
	p.processed_at, p.expires_at, p.lease_until, p.takeovers, p.first_at, p.prior, {now}`

// row is a key as it stands in processed_events.
type row struct {
	keystore.Record
	token     string
	prior     string
	retention time.Duration // what its completion asked for
	locked    bool          // by this transaction
}

func (r *row) scan(scan Scan) error {
	var (
		status, fingerprint, owner              string
		result                                  []byte
		token, prior                            *string
		processed, expires, lease, first, clock Time
	)
	err := scan(&r.Scope, &r.Key, &status, &fingerprint, &result, &owner, &token,
		&processed, &expires, &lease, &r.Takeovers, &first, &prior, &clock)
	if err != nil {
		return err
	}
	r.State, r.Fingerprint, r.Owner = keystore.State(status), fingerprint, owner
	if result != nil {
		r.Result = json.RawMessage(result)
	}
	r.ProcessedAt, r.FirstAt = processed.Time, first.Time
	if !expires.IsZero() {
		r.retention = max(expires.Sub(processed.Time), 0)
	}
	if r.State == keystore.Completed || r.State == keystore.Failed {
		r.ExpiresAt = expires.Time
	}
	if r.State == keystore.InProgress && !lease.IsZero() {
		r.LeaseLeft = lease.Sub(clock.Time)
	}
	r.token, r.prior = deref(token), deref(prior)
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// null is s, or SQL's NULL for an empty one.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// judge says what a claim without a token meets in a key's row, waiting rows aside. Fresh here means
// that the row is there, but may be replaced: a redriven failure. A lease that is over, or is that of owner itself, may be TakenOver.
func judge(c keystore.Claim, r *row, owner string) keystore.Outcome {
	if !envelope.SameFingerprint(c.Fingerprint, r.Fingerprint) {
		return keystore.Mismatch
	}
	switch r.State {
	case keystore.Completed:
		return keystore.Duplicate
	case keystore.Failed:
		if c.Redriven {
			return keystore.Fresh
		}
		return keystore.Rejected
	case keystore.InDoubt:
		return keystore.Doubtful
	}
	if r.LeaseLeft <= 0 || owner != "" && r.Owner == owner {
		return keystore.TakenOver
	}
	return keystore.Busy
}

// waiting is what parking holds against a claim.
type waiting struct {
	rows []waitingRow // of the same key
	head int64        // the oldest row of the same ordering key that waits or holds; 0 where there is none
}

type waitingRow struct {
	id          int64
	fingerprint string
}

// verdict says whether a claim must yield to parked rows; Fresh where not.
func (w *waiting) verdict(c keystore.Claim) keystore.Outcome {
	if w == nil {
		return keystore.Fresh
	}
	own := int64(0)
	if c.Parked != nil {
		own = c.Parked.ID
	}
	outcome := keystore.Fresh
	for _, r := range w.rows {
		switch {
		case r.id == own:
		case envelope.SameFingerprint(r.fingerprint, c.Fingerprint):
			return keystore.Waits
		default:
			outcome = keystore.Mismatch
		}
	}
	if outcome != keystore.Fresh {
		return outcome
	}
	if w.head != 0 && (own == 0 || w.head < own) {
		return keystore.Behind
	}
	return keystore.Fresh
}

// laterOrNil is d from now, or NULL for none.
func laterOrNil(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return Later(d)
}
