package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// mark writes the outcomes. It tries again while the source cannot be reached and the lane may be ours, because what is
// published and not marked goes out a second time.
func (r *Relay) mark(work context.Context, h *held, outcomes []outcome, begin time.Time) error {
	done, failures := r.sort(outcomes, begin)
	ctx := context.WithoutCancel(work)
	if len(done) > 0 {
		err := r.persist(ctx, h, func(ctx context.Context) error { return r.cfg.Source.Done(ctx, h.Lane, done) })
		if err != nil {
			r.cfg.Observer.copies(len(done))
			return fmt.Errorf("mark %d published records: %w", len(done), err)
		}
	}
	if len(failures) > 0 {
		err := r.persist(ctx, h, func(ctx context.Context) error { return r.cfg.Source.Failed(ctx, h.Lane, failures) })
		if err != nil {
			return fmt.Errorf("note %d failed records: %w", len(failures), err)
		}
	}
	return nil
}

// persist calls write until it succeeds, the lane is lost, or the lane's context ends; once in any case.
func (r *Relay) persist(ctx context.Context, h *held, write func(context.Context) error) error {
	wait := 20 * time.Millisecond
	for {
		call, cancel := context.WithTimeout(ctx, r.cfg.Lease)
		err := write(call)
		cancel()
		if err == nil || errors.Is(err, ErrLaneLost) {
			return err
		}
		timer := time.NewTimer(jitter(wait))
		select {
		case <-h.ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		wait = min(2*wait, time.Second)
	}
}

// sort parts the outcomes and tells the observer and the log.
func (r *Relay) sort(outcomes []outcome, begin time.Time) (done []int64, failures []Failure) {
	for _, o := range outcomes {
		if o.cause == "" {
			done = append(done, o.rec.ID)
		}
	}
	if len(done) > 0 {
		r.prove()
		r.cfg.Observer.published(len(done))
		r.cfg.Observer.lag(oldest(outcomes))
	}
	tally := map[Cause]*trouble{}
	for _, o := range outcomes {
		if o.cause == "" {
			continue
		}
		f := r.judge(o, begin)
		failures = append(failures, f)
		if tally[o.cause] == nil {
			tally[o.cause] = &trouble{first: o.err}
		}
		tally[o.cause].add(f)
		if f.Aside {
			r.logAside(o, f)
		}
	}
	for cause, t := range tally {
		r.tell(cause, t)
	}
	return done, failures
}

// trouble is what failed in one round for one cause.
type trouble struct {
	failed, aside int
	first         error
}

func (t *trouble) add(f Failure) {
	t.failed++
	if f.Aside {
		t.aside++
	}
}

func (r *Relay) tell(cause Cause, t *trouble) {
	r.cfg.Observer.failed(t.failed, cause)
	r.cfg.Observer.aside(t.aside, cause)
	failures := t.failed
	if cause == CauseUnavailable {
		if !r.down.CompareAndSwap(false, true) {
			return // said once already; its end is said, too
		}
	} else {
		var say bool
		if say, failures = r.quiet.tell(string(cause), t.failed, time.Now()); !say {
			return
		}
	}
	r.cfg.Logger.Warn("outbox records not published", slog.String("cause", string(cause)),
		slog.Int("failures", failures), slog.Int("aside", t.aside), slog.Any("err", t.first))
}

func (r *Relay) logAside(o outcome, f Failure) {
	r.cfg.Logger.Error("outbox record set aside; retry or drop it when its reason is mended",
		slog.Int64("id", f.ID), slog.String("topic", o.rec.Topic), slog.String("message_uuid", o.rec.UUID),
		slog.Int("attempt", o.rec.Attempts+1), slog.String("cause", string(o.cause)), slog.String("err", f.Reason))
}

// oldest is the age of the oldest published record.
func oldest(outcomes []outcome) time.Duration {
	var age time.Duration
	for _, o := range outcomes {
		if o.cause == "" {
			age = max(age, time.Since(dueSince(o.rec)))
		}
	}
	return age
}
