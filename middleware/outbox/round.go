package outbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/sync/errgroup"

	"github.com/oncemill/oncemill/middleware/envelope"
	"github.com/oncemill/oncemill/middleware/faultpoint"
)

// outcome is what became of one record in a round.
type outcome struct {
	rec   Record
	err   error
	cause Cause // "" where the record was published
}

// round reads, publishes and marks up to limit records of one lane. No new wave begins once stop is done.
func (r *Relay) round(work context.Context, stop <-chan struct{}, h *held, l *lanes, limit int) result {
	res := result{lane: h.Number, limit: limit}
	begin := time.Now()
	records, err := r.cfg.Source.Fetch(h.ctx, h.Lane, limit)
	if err != nil {
		r.sourceFailed(h, l, "read", err)
		res.pause = !errors.Is(err, ErrLaneLost)
		return res
	}
	if len(records) == 0 {
		return res
	}
	if res.crash = r.fault(h.ctx, faultpoint.OutboxRead); res.crash != nil {
		return res
	}
	outcomes := r.publish(h.ctx, stop, records)
	if work.Err() != nil && context.Cause(work) != errStopped {
		return res // another lane's fault point fired: this process is dead
	}
	if res.crash = r.fault(h.ctx, faultpoint.PublishedBeforeMarked); res.crash != nil {
		return res
	}
	if err := r.mark(work, h, outcomes, begin); err != nil {
		r.sourceFailed(h, l, "mark", err)
		res.pause = !errors.Is(err, ErrLaneLost)
		return res
	}
	res.crash = r.fault(h.ctx, faultpoint.Marked)
	res.more = len(records) == limit || len(outcomes) < len(records)
	res.pause = outage(outcomes) && !r.provenSince(begin)
	return res
}

// outage reports that the broker could not be reached with any of the outcomes' records.
func outage(outcomes []outcome) bool {
	for _, o := range outcomes {
		if o.cause != CauseUnavailable {
			return false
		}
	}
	return len(outcomes) > 0
}

func (r *Relay) sourceFailed(h *held, l *lanes, doing string, err error) {
	switch {
	case errors.Is(err, ErrLaneLost):
		l.drop(h)
		r.cfg.Logger.Info("outbox lane lost to another relay", slog.Int("lane", h.Number))
	case h.ctx.Err() == nil:
		if say, times := r.quiet.tell("source", 1, time.Now()); say {
			r.cfg.Logger.Warn("outbox cannot be reached, trying again",
				slog.String("doing", doing), slog.Int("lane", h.Number), slog.Int("failures", times), slog.Any("err", err))
		}
	}
}

// publish publishes records wave by wave and returns the outcomes that are known. Records behind a failed one of
// their ordering key are left alone: they have no outcome.
func (r *Relay) publish(ctx context.Context, stop <-chan struct{}, records []Record) []outcome {
	var known []outcome
	failed := map[string]bool{}
	for i, wave := range plan(records, r.cfg.OrderedBatch) {
		if ctx.Err() != nil || i > 0 && done(stop) {
			break
		}
		outcomes := r.publishWave(ctx, wave, failed)
		cut := ctx.Err() != nil
		for _, o := range outcomes {
			if cut && (o.cause == CauseUnavailable || o.cause == CauseRefused) {
				continue // cut short by us: the error says nothing of the record
			}
			if key := o.rec.OrderingKey; o.cause != "" && key != "" {
				if failed[key] {
					continue // refused because of the one before it
				}
				failed[key] = true
			}
			known = append(known, o)
		}
	}
	return known
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// publishWave publishes the batches of one wave at the same time and returns their outcomes, batch by batch.
func (r *Relay) publishWave(ctx context.Context, wave []batch, failed map[string]bool) []outcome {
	results := make([][]outcome, len(wave))
	var group errgroup.Group
	group.SetLimit(r.cfg.Workers)
	for i, b := range wave {
		b.records = without(b.records, failed)
		if len(b.records) > 0 {
			group.Go(func() error { results[i] = r.publishBatch(ctx, b); return nil })
		}
	}
	_ = group.Wait() // the functions return no error
	var all []outcome
	for _, outcomes := range results {
		all = append(all, outcomes...)
	}
	return all
}

func without(records []Record, failed map[string]bool) []Record {
	if len(failed) == 0 {
		return records
	}
	var rest []Record
	for _, rec := range records {
		if rec.OrderingKey == "" || !failed[rec.OrderingKey] {
			rest = append(rest, rec)
		}
	}
	return rest
}

// publishBatch publishes the records of b that keep the message contract, in one call.
func (r *Relay) publishBatch(ctx context.Context, b batch) []outcome {
	outcomes := make([]outcome, 0, len(b.records))
	msgs := make([]*message.Message, 0, len(b.records))
	var sent []Record
	for _, rec := range b.records {
		msg := rec.Message()
		if err := r.validate(rec.Topic, msg); err != nil {
			outcomes = append(outcomes, outcome{rec, err, CauseContract})
			continue
		}
		msgs, sent = append(msgs, msg), append(sent, rec)
	}
	if len(sent) == 0 {
		return outcomes
	}
	call, cancel := context.WithTimeout(ctx, r.cfg.PublishTimeout)
	defer cancel()
	errs := r.cfg.Publisher.PublishBatch(call, b.topic, msgs)
	for i, rec := range sent {
		o := outcome{rec: rec}
		if i >= len(errs) {
			o.err = errNoOutcome
		} else {
			o.err = errs[i]
		}
		if o.err != nil {
			o.cause = causeOf(o.err)
		}
		outcomes = append(outcomes, o)
	}
	return outcomes
}

// validate finds what breaks the contract before the publisher sees it. Reserved names are our own here.
func (r *Relay) validate(topic string, msg *message.Message) error {
	if err := envelope.ValidateTopic(topic); err != nil {
		return err
	}
	return envelope.ValidateMessage(msg, envelope.Limits{MaxPayload: r.cfg.MaxPayload, AllowReserved: true})
}
