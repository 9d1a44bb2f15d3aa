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

// settling bounds the requests of one subscriber that extend, or settle, at once.
const settling = 8

// keepAlive extends the visibility of what is held, until the end. A delivery that could not be extended in time is given up before
// somebody else may have it. We count from when a request was sent, the service from when it came, so no clocks are compared.
func (s *subscriber) keepAlive(ctx context.Context, end <-chan struct{}) {
	ticker := time.NewTicker(s.b.cfg.Visibility / 8)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-end:
			return
		}
		due, over := s.extendable(time.Now())
		if len(over) > 0 {
			s.log.Warn("sqs messages could not be kept; they will be delivered again", slog.Int("count", len(over)))
			s.takeAway(over...)
		}
		var group errgroup.Group
		group.SetLimit(settling)
		for len(due) > 0 {
			n := min(maxBatch, len(due))
			part := due[:n]
			due = due[n:]
			group.Go(func() error { s.extend(ctx, part); return nil })
		}
		_ = group.Wait() // the functions return no error
	}
}

// extendable returns what has less than two thirds of its visibility left, and what has nothing left.
func (s *subscriber) extendable(now time.Time) (due, over []*delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := range s.held {
		switch left := d.until.Sub(now); {
		case left <= 0:
			over = append(over, d)
		case left < s.b.cfg.Visibility*2/3 && (d.verdict == undecided || d.verdict == ack):
			d.extending = true
			due = append(due, d)
		}
	}
	return due, over
}

func (s *subscriber) extend(ctx context.Context, ds []*delivery) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.b.cfg.Visibility/3)
	defer cancel()
	failed, err := s.change(ctx, ds, func(*delivery) time.Duration { return s.b.cfg.Visibility })
	var gone []*delivery
	s.mu.Lock()
	for i, d := range ds {
		d.extending = false
		switch {
		case err != nil:
		case failed[i] == nil:
			d.until = sent.Add(s.b.cfg.Visibility)
		case failed[i].SenderFault:
			gone = append(gone, d)
		}
	}
	s.mu.Unlock()
	if err != nil {
		s.log.Debug("sqs messages could not be extended, trying again", slog.Any("err", err))
	}
	signal(s.settled) // what was nacked meanwhile has waited
	gone = s.stillHeld(gone)
	if len(gone) > 0 {
		s.log.Warn("sqs messages are not ours any more; they will be delivered again", slog.Int("count", len(gone)))
		s.takeAway(gone...)
	}
}

func (s *subscriber) stillHeld(ds []*delivery) []*delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var held []*delivery
	for _, d := range ds {
		if _, ours := s.held[d]; ours {
			held = append(held, d)
		}
	}
	return held
}

// change sets the visibility of at most ten messages. It returns the failure of each, nil where there is none.
func (s *subscriber) change(ctx context.Context, ds []*delivery, visibility func(*delivery) time.Duration) ([]*types.BatchResultErrorEntry, error) {
	url, err := s.b.queues.url(ctx, s.sub.Topic, s.sub.Group)
	if err != nil {
		return nil, err
	}
	entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(ds))
	for i, d := range ds {
		entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(d.receipt),
			VisibilityTimeout: int32(visibility(d) / time.Second), //nolint:gosec // 12 hours at most
		}
	}
	out, err := s.b.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(url), Entries: entries})
	if err != nil {
		return nil, classify(err)
	}
	return failures(len(ds), out.Failed), nil
}

// failures sorts the failures by entry.
func failures(n int, failed []types.BatchResultErrorEntry) []*types.BatchResultErrorEntry {
	all := make([]*types.BatchResultErrorEntry, n)
	for i := range failed {
		if at, err := strconv.Atoi(aws.ToString(failed[i].Id)); err == nil && at < n {
			all[at] = &failed[i]
		}
	}
	return all
}
