package sqsbroker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/oncemill/oncemill/middleware/envelope"
)

const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// consume finds the queue and receives until the stop.
func (s *subscriber) consume(working context.Context, helpers *sync.WaitGroup) {
	asking, cancel := context.WithCancel(working) // ends with the stop
	defer cancel()
	helpers.Go(func() {
		select {
		case <-s.Stopping():
			cancel()
		case <-asking.Done():
		}
	})
	url, err := s.find(asking)
	if err != nil {
		return // stopped
	}
	helpers.Go(func() { s.watchBacklog(asking, url) })
	// One receiver always asks. The others ask while answers are full.
	full := make(chan struct{}, s.b.cfg.Receivers-1)
	var receivers sync.WaitGroup
	for range s.b.cfg.Receivers - 1 {
		receivers.Go(func() {
			for {
				select {
				case <-full:
					s.receive(working, asking, url, full, false)
				case <-asking.Done():
					return
				}
			}
		})
	}
	s.receive(working, asking, url, full, true)
	receivers.Wait()
}

// find returns the queue's URL. It insists, and makes a queue that is missing where that is ours to do.
func (s *subscriber) find(asking context.Context) (string, error) {
	pause := retryFirst
	for {
		var url string
		err := s.b.do(asking, func(ctx context.Context) (err error) {
			url, err = s.b.queues.url(ctx, s.sub.Topic, s.sub.Group)
			if errors.Is(err, errNoQueue) && s.b.cfg.Topology == Declare {
				if err = s.b.queues.prepare(ctx, s.sub.Topic, []string{s.sub.Group}); err == nil {
					url, err = s.b.queues.url(ctx, s.sub.Topic, s.sub.Group)
				}
			}
			return err
		})
		if err == nil {
			return url, nil
		}
		if asking.Err() != nil {
			return "", err
		}
		s.troubled(err)
		if sleep(asking, jitter(pause)) != nil {
			return "", err
		}
		pause = min(2*pause, retryMost)
	}
}

func (s *subscriber) troubled(err error) {
	s.SetProblem(fmt.Errorf("sqs: %w", err))
	s.log.Warn("sqs messages cannot be received", slog.Any("err", err))
}

// receive asks for messages until the stop, or, where it is not the steady one, until an answer is not full.
func (s *subscriber) receive(working, asking context.Context, url string, full chan struct{}, steady bool) {
	pause := retryFirst
	r := request{url: url}
	for {
		places := s.room(asking)
		if places == 0 {
			return
		}
		got, err := s.ask(working, &r, places)
		switch {
		case err == nil:
			s.SetProblem(nil)
			pause = retryFirst
			if got == places {
				signal(full)
			} else if !steady {
				return
			}
		case asking.Err() != nil:
			return
		default:
			s.troubled(err)
			if sleep(asking, jitter(pause)) != nil {
				return
			}
			pause = min(2*pause, retryMost)
		}
	}
}

// request is one that is sent again, under the same name, until it is answered: the service then answers with the messages
// that a lost answer held.
type request struct {
	url     string
	attempt string
	began   time.Time
}

// ask receives up to so many messages, for which places are kept.
func (s *subscriber) ask(working context.Context, r *request, places int) (int, error) {
	if r.attempt == "" {
		r.attempt, r.began = envelope.NewUUID(), time.Now()
	}
	visibility := s.b.cfg.Visibility
	ctx, cancel := context.WithTimeout(working, s.b.cfg.Wait+answerWithin)
	defer cancel()
	out, err := s.b.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: aws.String(r.url), MaxNumberOfMessages: int32(places), ReceiveRequestAttemptId: aws.String(r.attempt), //nolint:gosec // 10 at most
		VisibilityTimeout: int32(visibility / time.Second), WaitTimeSeconds: int32(s.b.cfg.Wait / time.Second), //nolint:gosec // checked by Validate
		MessageAttributeNames:       []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil {
		s.arrive(nil, places, time.Time{})
		if time.Since(r.began) > visibility {
			r.attempt = ""
		}
		return 0, classify(err)
	}
	r.attempt = ""
	s.arrive(out.Messages, places, r.began.Add(visibility)) // its visibility cannot have begun before it was asked for
	return len(out.Messages), nil
}

// room waits for free places, at most as many as one request can bring, and keeps them. It returns 0 at the stop.
func (s *subscriber) room(asking context.Context) int {
	for {
		s.mu.Lock()
		free := min(s.places(), maxBatch)
		if free > 0 && asking.Err() == nil {
			s.asked += free
			if s.places() > 0 {
				signal(s.freed) // for another receiver
			}
			s.mu.Unlock()
			return free
		}
		s.mu.Unlock()
		select {
		case <-s.freed:
		case <-asking.Done():
			return 0
		}
	}
}

// places is how many are free. The lock is held.
func (s *subscriber) places() int { return s.sub.InFlight - len(s.held) - s.asked }

// arrive takes what was received, and frees the places that were kept for it.
func (s *subscriber) arrive(messages []types.Message, places int, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked -= places
	for i := range messages {
		d := newDelivery(messages[i], until)
		s.held[d] = struct{}{}
		s.queue = append(s.queue, d)
		if d.sent().Before(s.since) {
			s.old++
		}
	}
	signal(s.queued)
	signal(s.freed)
}

// jitter returns something from half of d to d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
