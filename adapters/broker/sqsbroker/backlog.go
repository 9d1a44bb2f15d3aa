package sqsbroker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// looks is how often the counts must say that the backlog is settled: they are approximate.
const looks = 3

// watchBacklog calls CatchUp when what stood in the queue at Subscribe is settled, by whichever replica. The service only counts:
// all that it counts must be in our hands, and have come later. A queue that is never found so is taken for caught up when the service
// has dropped what stood in it.
func (s *subscriber) watchBacklog(asking context.Context, url string) {
	good, old := 0, -1
	for {
		settled, seen, err := s.look(asking, url)
		switch {
		case asking.Err() != nil:
			return
		case err != nil:
			s.log.Debug("sqs backlog could not be read", slog.Any("err", err))
		case !settled || seen != old:
			good, old = 0, seen
		}
		if err == nil && settled {
			good++
		}
		if good == looks || time.Since(s.since) > s.b.queues.longest() {
			s.CatchUp()
			return
		}
		if sleep(asking, s.b.cfg.CaughtUpAfter/(looks-1)) != nil {
			return
		}
	}
}

// look reports whether the backlog seems to be settled, and how much of it has come to us.
func (s *subscriber) look(asking context.Context, url string) (settled bool, old int, err error) {
	ctx, cancel := context.WithTimeout(asking, answerWithin)
	defer cancel()
	names := []types.QueueAttributeName{
		types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesDelayed,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
	}
	out, err := s.b.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: aws.String(url), AttributeNames: names})
	if err != nil {
		return false, 0, classify(err)
	}
	var counts [3]int
	for i, name := range names {
		if counts[i], err = strconv.Atoi(out.Attributes[string(name)]); err != nil {
			return false, 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	later := 0
	for d := range s.held {
		if d.sent().Before(s.since) {
			return false, s.old, nil
		}
		later++
	}
	return counts[0] == 0 && counts[1] == 0 && counts[2] <= later, s.old, nil
}
