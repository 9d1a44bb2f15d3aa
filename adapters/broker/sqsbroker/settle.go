package sqsbroker

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"
)

const (
	settleWithin = 10 * time.Second
	coalesce     = 3 * time.Millisecond
	slowestNack  = 5 * time.Second
)

// flush brings verdicts to the service, many at once, until all are there after noMore. Where ctx ends before, the rest is
// given up: it is delivered again.
func (s *subscriber) flush(ctx context.Context, noMore <-chan struct{}) {
	last := false
	for {
		ds, left, wait := s.takeVerdicts(time.Now())
		if len(ds) > 0 {
			s.bring(ctx, ds)
			continue
		}
		if last && left == 0 {
			return
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-s.settled:
			s.gather()
		case <-due:
		case <-noMore:
			last, noMore = true, nil
		case <-ctx.Done():
			s.giveUpVerdicts()
			if last {
				return
			}
			<-noMore
			s.giveUpVerdicts()
			return
		}
	}
}

func (s *subscriber) giveUpVerdicts() {
	s.mu.Lock()
	ds := s.verdicts
	s.verdicts = nil
	s.mu.Unlock()
	if len(ds) > 0 {
		s.log.Warn("sqs settlements did not reach the service; the messages will be delivered again", slog.Int("count", len(ds)))
	}
	s.finish(ds)
}

// gather waits a moment for more verdicts where more messages are being handled.
func (s *subscriber) gather() {
	patience := time.After(coalesce)
	for {
		s.mu.Lock()
		have, held := len(s.verdicts), len(s.held)
		s.mu.Unlock()
		if have >= min(held, maxBatch) {
			return
		}
		select {
		case <-s.settled:
		case <-patience:
			return
		}
	}
}

// takeVerdicts takes what is due. It says how many are left, and when one of them will be due; a nack waits for an
// extension that is on its way, which would undo it.
func (s *subscriber) takeVerdicts(now time.Time) (due []*delivery, left int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []*delivery
	for _, d := range s.verdicts {
		switch until := d.due.Sub(now); {
		case d.extending && d.verdict != ack:
			rest = append(rest, d)
		case until > 0:
			rest = append(rest, d)
			if wait == 0 || until < wait {
				wait = until
			}
		default:
			due = append(due, d)
		}
	}
	s.verdicts = rest
	return due, len(rest), wait
}

// bring applies verdicts at the service, those that fail for a reason of the service's once more, later.
func (s *subscriber) bring(ctx context.Context, ds []*delivery) {
	var acked, changed []*delivery
	for _, d := range ds {
		if d.verdict == ack {
			acked = append(acked, d)
		} else {
			changed = append(changed, d)
		}
	}
	var group errgroup.Group
	group.SetLimit(settling)
	each := func(ds []*delivery, apply func(context.Context, []*delivery) ([]*types.BatchResultErrorEntry, error)) {
		for len(ds) > 0 {
			n := min(maxBatch, len(ds))
			part := ds[:n]
			ds = ds[n:]
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, settleWithin)
				defer cancel()
				failed, err := apply(ctx, part)
				s.judge(part, failed, err)
				return nil
			})
		}
	}
	each(acked, s.remove)
	each(changed, func(ctx context.Context, part []*delivery) ([]*types.BatchResultErrorEntry, error) {
		return s.change(ctx, part, delay)
	})
	_ = group.Wait() // the functions return no error
}

// judge ends what is settled, or can never be, and leaves the rest for another attempt.
func (s *subscriber) judge(ds []*delivery, failed []*types.BatchResultErrorEntry, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range ds {
		if _, held := s.held[d]; !held {
			continue // taken away meanwhile
		}
		switch {
		case err == nil && failed[i] == nil:
			s.end(d)
		case err == nil && failed[i].SenderFault:
			s.log.Warn("an sqs message was not ours any more when it was settled; it may be delivered again",
				slog.String("position", d.id), slog.String("code", aws.ToString(failed[i].Code)))
			s.end(d)
		default:
			d.due = time.Now().Add(jitter(min(retryFirst<<min(d.tries, 10), retryMost)))
			d.tries++
			s.verdicts = append(s.verdicts, d)
		}
	}
	if err != nil {
		s.log.Debug("sqs settlements failed, trying again", slog.Any("err", err))
	}
}

// remove deletes at most ten messages.
func (s *subscriber) remove(ctx context.Context, ds []*delivery) ([]*types.BatchResultErrorEntry, error) {
	url, err := s.b.queues.url(ctx, s.sub.Topic, s.sub.Group)
	if err != nil {
		return nil, err
	}
	entries := make([]types.DeleteMessageBatchRequestEntry, len(ds))
	for i, d := range ds {
		entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(d.receipt)}
	}
	out, err := s.b.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(url), Entries: entries})
	if err != nil {
		return nil, classify(err)
	}
	return failures(len(ds), out.Failed), nil
}

// delay is how long a message that is handed back stays away: one second, doubled with each delivery.
func delay(d *delivery) time.Duration {
	if d.verdict == handBack {
		return 0
	}
	return min(time.Second<<min(max(d.count-1, 0), 10), slowestNack)
}
